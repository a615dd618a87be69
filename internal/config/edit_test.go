package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gofrs/flock"
	"golang.org/x/tools/txtar"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// TestEdits tests each edit with its golden file testdata/edits/<edit>.txtar. The archive's comment is the edit,
// x.want is the result for x.yaml, or the error after "error:".
func TestEdits(t *testing.T) {
	t.Setenv("HOME", "/home/someone")
	t.Setenv("USERPROFILE", "/home/someone")
	paths, err := filepath.Glob("testdata/edits/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			change := parseEdit(t, string(a.Comment))
			out := &txtar.Archive{Comment: a.Comment}
			for _, f := range a.Files {
				name, ok := strings.CutSuffix(f.Name, ".yaml")
				if !ok {
					continue
				}
				got := outcome(string(f.Data), change)
				if want := want(a, name); got != want && !*update {
					t.Errorf("%s: got\n%s\nwant\n%s", f.Name, got, want)
				}
				otherEnds(t, f.Name, string(f.Data), got, change)
				out.Files = append(out.Files, f, txtar.File{Name: name + ".want", Data: []byte(got)})
			}
			if *update {
				if err := os.WriteFile(path, txtar.Format(out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// otherEnds checks that the edit has the same result for the text with other line ends, without the last line end,
// and after a byte order mark, and that repeating it changes nothing.
func otherEnds(t *testing.T, name, text, got string, change func(lists)) {
	t.Helper()
	if strings.HasPrefix(got, "error:") {
		return
	}
	if again := outcome(got, change); again != got {
		t.Errorf("%s: done twice, got\n%s", name, again)
	}
	crlf := func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
	if out := outcome(crlf(text), change); out != crlf(got) && text != "" {
		t.Errorf("%s: with \\r\\n, got\n%q\nwant\n%q", name, out, crlf(got))
	}
	if out := outcome("\ufeff"+text, change); out != "\ufeff"+got {
		t.Errorf("%s: with a byte order mark, got\n%q", name, out)
	}
	if out := outcome(strings.TrimSuffix(text, "\n"), change); strings.TrimSuffix(out, "\n") != strings.TrimSuffix(got, "\n") {
		t.Errorf("%s: without the last line end, got\n%s", name, out)
	}
}

func outcome(text string, change func(lists)) string {
	out, err := edited("extensions.yaml", text, change)
	if err != nil {
		return fmt.Sprintf("error: %v\n", err)
	}
	return out
}

func parseEdit(t *testing.T, line string) func(lists) {
	t.Helper()
	verb, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
	return func(l lists) {
		switch verb {
		case "disable":
			l.disable(arg)
		case "enable":
			l.enable(arg)
		case "link":
			l.add("links", arg, sameDir)
		case "unlink":
			l.drop("links", arg, sameDir)
		default:
			t.Fatalf("unknown edit %q", verb)
		}
	}
}

func want(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name+".want" {
			return string(f.Data)
		}
	}
	return ""
}

func TestSetDisabled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config", "extensions.yaml")
	ctx := t.Context()
	for _, step := range []struct {
		id       string
		disabled bool
		changed  bool
		want     string // the file's text; "-": no file
	}{
		{"weather", false, false, "-"},
		{"weather", true, true, starter + "  disabled: [weather]\n"},
		{"weather", true, false, starter + "  disabled: [weather]\n"},
		{"slack", true, true, starter + "  disabled: [weather, slack]\n"},
		{"weather", false, true, starter + "  disabled: [slack]\n"},
		{"slack", false, true, starter + "  disabled: []\n"},
	} {
		changed, err := SetDisabled(ctx, path, step.id, step.disabled)
		if got := text(path); err != nil || changed != step.changed || got != step.want {
			t.Errorf("%+v: %v, %v, got %q", step, changed, err, got)
		}
	}
	if _, err := SetDisabled(ctx, path, "No Id", true); err == nil || !strings.Contains(err.Error(), "not an extension's id") {
		t.Errorf("an invalid id: %v", err)
	}
}

func TestLinks(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	ctx := t.Context()
	path := "extensions.yaml"
	src := filepath.Join(dir, "src")
	if changed, err := AddLink(ctx, path, "./src"); err != nil || !changed {
		t.Fatalf("%v, %v", changed, err)
	}
	if changed, err := AddLink(ctx, path, src); err != nil || changed {
		t.Errorf("recorded already: %v, %v", changed, err)
	}
	c, diags := Load(path, true)
	if len(diags) > 0 || !slices.Equal(c.Links, []string{src}) || !slices.Equal(c.Roots(), []string{"./extensions", src}) {
		t.Errorf("%v, %v, %v", c.Links, c.Roots(), diags)
	}
	if changed, err := RemoveLink(ctx, path, "src/../src"); err != nil || !changed || text(path) != starter+"  links: []\n" {
		t.Errorf("%v, %v, got %q", changed, err, text(path))
	}
}

// TestEditKeeps checks what an edit does not change: the mode, a symbolic link, and a file that needs no change or
// has errors.
func TestEditKeeps(t *testing.T) {
	dir := t.TempDir()
	ctx := t.Context()
	real := filepath.Join(dir, "real", "ext.yaml")
	link := filepath.Join(dir, "extensions.yaml")
	must(t, os.Mkdir(filepath.Dir(real), 0o755))
	must(t, os.WriteFile(real, []byte("extensions:\n  gating: warn\n"), 0o600))
	must(t, os.Symlink(filepath.Join("real", "ext.yaml"), link))
	if changed, err := SetDisabled(ctx, link, "a", true); err != nil || !changed {
		t.Fatalf("%v, %v", changed, err)
	}
	if got := text(real); got != "extensions:\n  gating: warn\n  disabled: [a]\n" {
		t.Errorf("the link's target is %q", got)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", info, err)
	}
	before, err := os.Stat(real)
	if err != nil || before.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", before.Mode(), err)
	}
	if changed, err := SetDisabled(ctx, link, "a", true); err != nil || changed {
		t.Errorf("%v, %v, want no change", changed, err)
	}
	if after, err := os.Stat(real); err != nil || !os.SameFile(before, after) {
		t.Errorf("rewritten without a change: %v", err)
	}
	const broken = "extensions: {gatting: warn}\n"
	must(t, os.WriteFile(real, []byte(broken), 0o600))
	_, err = SetDisabled(ctx, link, "b", true)
	if invalid, ok := errors.AsType[*InvalidError](err); !ok || len(invalid.Diagnostics) != 1 || text(real) != broken {
		t.Errorf("a file with errors: %v, %q", err, text(real))
	}
	for _, e := range list(t, filepath.Dir(real)) {
		if e != "ext.yaml" && e != ".ext.yaml.lock" {
			t.Errorf("%s was left behind", e)
		}
	}
}

// TestEditsAtOnce fails if one of two concurrent edits is lost.
func TestEditsAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "extensions.yaml")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { // ends with its edit; waited for below
			if changed, err := SetDisabled(t.Context(), path, fmt.Sprintf("ext-%d", i), true); err != nil || !changed {
				t.Errorf("%d: %v, %v", i, changed, err)
			}
		})
	}
	wg.Wait()
	if c, diags := Load(path, true); len(c.Disabled) != 8 || len(diags) > 0 {
		t.Errorf("%v, %v; want all 8", c.Disabled, diags)
	}
}

func TestEditWaitsForTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "extensions.yaml")
	l := flock.New(filepath.Join(filepath.Dir(path), ".extensions.yaml.lock"))
	must(t, l.Lock())
	defer l.Unlock()
	why := errors.New("gone home")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := SetDisabled(ctx, path, "a", true); !errors.Is(err, why) {
		t.Errorf("%v, want the context's cause", err)
	}
	if got := text(path); got != "-" {
		t.Errorf("the file was written without the lock: %q", got)
	}
}

// FuzzEdit checks that an edit of any text either has its effect or fails, and removes no comment.
func FuzzEdit(f *testing.F) {
	for _, glob := range []string{"testdata/edits/*.txtar", "testdata/rules/*.txtar"} {
		paths, _ := filepath.Glob(glob)
		for _, path := range paths {
			a, err := txtar.ParseFile(path)
			if err != nil {
				f.Fatal(err)
			}
			for _, file := range a.Files {
				f.Add(string(file.Data))
				f.Add(strings.ReplaceAll(string(file.Data), "\n", "\r\n"))
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		added, err := edited("x", text, func(l lists) { l.disable("weather") })
		if err != nil {
			return
		}
		c, diags := Parse("x", []byte(added))
		if manifest.HasErrors(diags) || !slices.Contains(c.Disabled, "weather") {
			t.Fatalf("disabling in %q results in %q: %v", text, added, diags)
		}
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") && !strings.Contains(added, line) {
				t.Errorf("disabling in %q results in %q: %q is gone", text, added, line)
			}
		}
		removed, err := edited("x", added, func(l lists) { l.drop("disabled", "weather", sameText) })
		if err != nil {
			return
		}
		if c, diags := Parse("x", []byte(removed)); manifest.HasErrors(diags) || slices.Contains(c.Disabled, "weather") {
			t.Fatalf("enabling in %q results in %q: %v", added, removed, diags)
		}
	})
}

// text returns the content of a file, "-" if it does not exist.
func text(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "-"
	}
	return string(data)
}

func list(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
