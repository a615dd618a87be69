package sourcewatch

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSources: only files that can change what an extension does count.
func TestSources(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"main.py", "lib/util.py", "plugin.toml", ".mcp.json", ".git/HEAD", "node_modules/a/index.js", "__pycache__/main.pyc",
		"venv/pyvenv.cfg", "venv/lib/z.py", "target/debug/x", "main.py~", ".main.py.swp", "x.log", "lib/.venv/y.py",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := sources(t.Context(), dir, []string{"target"})
	if got := slices.Sorted(maps.Keys(files)); err != nil || !slices.Equal(got, []string{filepath.Join("lib", "util.py"), "main.py"}) {
		t.Errorf("%v, %v", got, err)
	}
	if files, err := sources(t.Context(), filepath.Join(dir, "missing"), nil); err != nil || len(files) != 0 {
		t.Errorf("%v, %v", files, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sources(ended, dir, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestSourceDir has one line for each look at a directory: the files with their sizes, and the file whose change restarts
// the extension.
func TestSourceDir(t *testing.T) {
	d := &sourceDir{}
	now := time.Unix(0, 0)
	for n, look := range []struct{ files, changed string }{
		{"a b", ""},
		{"a b", ""},
		{"a+ b", ""}, // not yet complete
		{"a++ b", ""},
		{"a++ b", "a"},
		{"a++ b", ""},
		{"a++ b c", ""},
		{"a++ b c", "c"},
		{"a++ b", ""},
		{"a++ b c", ""}, // as an editor does that writes a new file and renames it
		{"a++ b c", ""},
		{"a++", ""},
		{"a++", "b"},
	} {
		now = now.Add(time.Second)
		if got := d.look(stamps(look.files), now); got != look.changed {
			t.Errorf("look %d at %s: %q, want %q", n, look.files, got, look.changed)
		}
	}
	if !d.restsTo.IsZero() {
		t.Error("it rests after three changes")
	}
	for n := range 20 { // a program that writes to its own directory
		now = now.Add(time.Second)
		d.look(stamps("a"+strings.Repeat("+", 3+n/2)), now)
	}
	if d.restsTo.Before(now) {
		t.Error("it does not rest after ten restarts in twenty seconds")
	}
	now = now.Add(sourceRest)
	d.look(stamps("a"), now)
	if got := d.look(stamps("a"), now.Add(time.Second)); got != "a" {
		t.Errorf("a change after the rest: %q", got)
	}
	restarts := 0
	for n := range 17 { // one that writes all the time
		now = now.Add(time.Second)
		if d.look(stamps("a"+strings.Repeat("+", 1+n)), now) != "" {
			restarts++
		}
	}
	if restarts != 1 || d.restsTo.Before(now) {
		t.Errorf("files that do not stop changing: %d restarts, and it rests until %v; now %v", restarts, d.restsTo, now)
	}
}

func stamps(files string) map[string]stamp {
	out := map[string]stamp{}
	for _, f := range strings.Fields(files) {
		name := strings.TrimRight(f, "+")
		out[name] = stamp{size: int64(len(f) - len(name))}
	}
	return out
}
