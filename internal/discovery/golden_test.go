package discovery

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "update the golden files")

// minimal replaces "#minimal ID" in the plugin.toml of golden files.
const minimal = `[plugin]
id = "%s"
version = "1.0.0"

[capabilities]
tools = ["go"]

[transport]
type = "stdio"
command = "true"
`

// TestScanGolden scans the tree in each testdata/scan/*.txtar: options.json contains the Options with roots relative
// to the tree, links the symbolic links, and report the expected result.
func TestScanGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/scan/*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			dir, opt := unpack(t, archive)
			got := render(dir, Scan(t.Context(), opt))
			for range 3 {
				if again := render(dir, Scan(t.Context(), opt)); again != got {
					t.Fatalf("two scans of the same tree differ:\n%s\nthan\n%s", again, got)
				}
			}
			if last := &archive.Files[len(archive.Files)-1]; last.Name != "report" {
				t.Fatalf("the last file is %s, want report", last.Name)
			} else if *update {
				last.Data = []byte(got)
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if want := string(last.Data); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// unpack creates the tree of a golden file in a directory of its own.
func unpack(t *testing.T, archive *txtar.Archive) (string, Options) {
	dir := tempDir(t)
	var opt Options
	for _, f := range archive.Files {
		switch f.Name {
		case "options.json":
			d := json.NewDecoder(bytes.NewReader(f.Data))
			d.DisallowUnknownFields()
			if err := d.Decode(&opt); err != nil {
				t.Fatal(err)
			}
		case "links":
			for line := range strings.Lines(string(f.Data)) {
				from, to, _ := strings.Cut(strings.TrimSpace(line), " -> ")
				symlink(t, strings.ReplaceAll(to, "$DIR", dir), filepath.Join(dir, from))
			}
		case "report":
		default:
			text := string(f.Data)
			if id, ok := strings.CutPrefix(text, "#minimal "); ok {
				text = fmt.Sprintf(minimal, strings.TrimSpace(id))
			}
			write(t, filepath.Join(dir, f.Name), text)
		}
	}
	for _, list := range [][]string{opt.Roots, opt.Links} {
		for i, r := range list {
			if r != "" {
				list[i] = filepath.Join(dir, r)
			}
		}
	}
	return dir, opt
}

func render(dir string, r Report) string {
	var b strings.Builder
	for _, c := range r.Candidates {
		fmt.Fprintf(&b, "candidate %d %s %s\n", c.RootIndex, c.Manifest.Plugin.ID, c.Root)
		for _, m := range c.Manifest.Members() {
			fmt.Fprintf(&b, "  member %s\n", m.Plugin.ID)
		}
	}
	for _, c := range r.Shadowed {
		fmt.Fprintf(&b, "shadowed %d %s %s\n", c.RootIndex, c.Manifest.Plugin.ID, c.Root)
	}
	for _, d := range r.Diagnostics {
		fmt.Fprintln(&b, d)
	}
	fmt.Fprintf(&b, "scanned %d, disabled %d, invalid %d, incomplete %t\n", r.ScannedDirs, r.DisabledCount, r.InvalidCount, r.Incomplete)
	return filepath.ToSlash(strings.ReplaceAll(b.String(), dir, "$DIR"))
}

// tempDir returns a canonical t.TempDir.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func symlink(t testing.TB, to, from string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, from); err != nil {
		t.Fatal(err)
	}
}
