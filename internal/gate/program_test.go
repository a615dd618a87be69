package gate

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestProgram(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("what is executable is in its name there")
	}
	root := t.TempDir()
	for name, mode := range map[string]os.FileMode{"run": 0o755, "text": 0o644, "bin/tool": 0o755} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("run", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ command, cwd, want string }{
		{"./run", "", ""},
		{"./link", "", ""},
		{"bin/tool", "", ""},
		{"./tool", "bin", ""},
		{"./tool", filepath.Join(root, "bin"), ""},
		{filepath.Join(root, "run"), "bin", ""},
		{"no-such-program", "", ""}, // a name: requires.bins is for those
		{"./gone", "", "does not exist"},
		{"./run", "bin", "does not exist"},
		{"/no/such/file", "", "does not exist"},
		{"./text", "", "is not executable; chmod +x"},
		{"./bin", "", "is a directory"},
		{"./run/x", "", "cannot be run: not a directory"},
	} {
		if got := Program(root)(tt.command, tt.cwd); !strings.HasPrefix(got, tt.want) || (tt.want == "") != (got == "") {
			t.Errorf("%s in %q: %q, want %q", tt.command, tt.cwd, got, tt.want)
		}
	}
	t.Chdir(root) // as extctl validate plugin.toml does
	for command, want := range map[string]string{"./run": "", "./gone": "does not exist"} {
		if got := Program(".")(command, ""); !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}
