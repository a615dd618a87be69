package clients

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/pkg/manifest"
)

var updateGolden = flag.Bool("update", false, "rewrite the golden file")

// TestCorpus imports the servers of each file in testdata/corpus.txtar, with the mesh's entry in their place, and undoes that. Each
// server is imported or has a reason; no secret remains in the extension's manifest; the undo restores every byte. The same holds
// for the installation of the entry. What becomes of each server is in corpus.golden.
func TestCorpus(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/corpus.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var golden strings.Builder
	imported, all := 0, 0
	for _, f := range archive.Files {
		_, name, _ := strings.Cut(f.Name, "/")
		content := strings.ReplaceAll(strings.ReplaceAll(string(f.Data), "␄\n", ""), "␍", "\r")
		e, path := place(t, name, content)
		source := e.Source(path)
		plan, err := e.PlanImport(filepath.Join(e.Dir, "extensions", "imported"), []Source{source})
		if err != nil {
			fmt.Fprintf(&golden, "%s: %s\n", f.Name, strings.ReplaceAll(err.Error(), e.Home, "HOME"))
			continue
		}
		if len(plan.Servers) == 0 {
			fmt.Fprintf(&golden, "%s: no servers\n", f.Name)
		}
		for _, s := range plan.Servers {
			all++
			line := fmt.Sprintf("%s: %s → %s (%s), %d secrets, needs %v, %q", f.Name, s.Name, s.Target, s.Runs, s.Secrets, s.Needs, s.Notes)
			if s.Target == "" {
				line = fmt.Sprintf("%s: %s: %s", f.Name, s.Name, s.Skipped)
			} else {
				imported++
			}
			if (s.Target == "") == (s.Skipped == "") {
				t.Errorf("neither imported nor a reason: %s", line)
			}
			golden.WriteString(strings.ReplaceAll(line, e.Home, "HOME") + "\n")
		}
		importAndUndo(t, e, plan, f.Name, path, content)
		installAndUndo(t, e, source.client, f.Name, path, content)
	}
	fmt.Fprintf(&golden, "%d files, %d servers, %d imported\n", len(archive.Files), all, imported)
	if *updateGolden {
		if err := os.WriteFile("testdata/corpus.golden", []byte(golden.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/corpus.golden")
	if err != nil || string(want) != golden.String() {
		t.Errorf("the result differs from corpus.golden (-update rewrites it): %v\n%s", err, golden.String())
	}
}

// place writes a file of the corpus into a new home directory.
func place(t *testing.T, name, content string) (Env, string) {
	t.Helper()
	home := t.TempDir()
	e := Env{Home: home, Config: filepath.Join(home, "config"), Dir: filepath.Join(home, "project"), State: filepath.Join(home, "state"),
		Getenv: func(string) string { return "" }}
	path := filepath.Join(home, filepath.FromSlash(name))
	if strings.HasPrefix(name, "claude_desktop") {
		path = filepath.Join(e.Config, "Claude", name)
	}
	for _, dir := range []string{filepath.Dir(path), e.Dir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
	return e, path
}

func importAndUndo(t *testing.T, e Env, plan *Plan, name, path, content string) {
	t.Helper()
	if len(plan.Files) == 0 {
		return
	}
	if _, err := plan.Replace("mesh", Entry{Command: "/bin/extctl"}); err != nil && !strings.HasPrefix(filepath.Base(filepath.Dir(path)), "pasted") {
		t.Errorf("%s: %v", name, err)
	}
	if err := plan.Apply(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	written := read(t, filepath.Join(plan.Dir, manifest.SidecarName))
	m, diags := manifest.ParseSidecar("imported", "x", []byte(written), manifest.Options{})
	if m == nil || len(m.MCPServers) != len(plan.members) {
		t.Errorf("%s: %v\n%s", name, diags, written)
	}
	for _, secret := range []string{"pw123456", "tok123456", "sbp_123456", "k123456", "fk123456", "ghp_x1", "ctx7-1", "fc123456"} {
		if strings.Contains(written, secret) {
			t.Errorf("%s: the manifest has the secret %s\n%s", name, secret, written)
		}
		if summary := fmt.Sprint(plan.Servers); strings.Contains(summary, secret) {
			t.Errorf("%s: the summary has the secret %s\n%s", name, secret, summary)
		}
	}
	for _, s := range plan.secrets {
		info, err := os.Stat(filepath.Join(plan.Dir, s.file))
		if err != nil || os.PathSeparator == '/' && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
		got, _, err := manifest.Expander{Root: plan.Dir}.Expand("${file:" + s.file + "}")
		if err != nil || got != s.value {
			t.Errorf("%s: %s is %q, want %q: %v", name, s.file, got, s.value, err)
		}
	}
	if len(plan.edits) > 0 && read(t, path) == content {
		t.Errorf("%s: --replace changed nothing", name)
	}
	if _, err := e.UndoImport(); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if got := read(t, path); got != content {
		t.Errorf("%s: the undo left %q, want %q", name, got, content)
	}
	if _, err := os.Stat(filepath.Join(e.Dir, "extensions")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: the directory remains: %v", name, err)
	}
}

func installAndUndo(t *testing.T, e Env, c Client, name, path, content string) {
	t.Helper()
	scope := User
	if p, ok := e.Path(c, Project); ok && p == path {
		scope = Project
	} else if p, ok := e.Path(c, User); !ok || p != path {
		return
	}
	s := Setup{Client: c, Scope: scope, Name: "mesh", Entry: Entry{Command: "/bin/extctl"}}
	for _, action := range []string{"added", "unchanged"} {
		if out, err := e.Install(s); err != nil || out.Action != action {
			t.Errorf("%s: %+v %v", name, out, err)
		}
	}
	if info, err := os.Stat(path); err != nil || os.PathSeparator == '/' && info.Mode().Perm() != 0o640 {
		t.Errorf("%s: the mode has changed: %v %v", name, info, err)
	}
	if out, err := e.Uninstall(s); err != nil || out.Action != "restored" {
		t.Errorf("%s: %+v %v", name, out, err)
	}
	if got := read(t, path); got != content {
		t.Errorf("%s: uninstall left %q, want %q", name, got, content)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// importCursor imports the servers of Cursor with --replace.
func importCursor(t *testing.T, e Env) {
	t.Helper()
	c, _ := Find("cursor")
	plan, err := e.PlanImport(filepath.Join(e.Dir, "extensions", "imported"), e.Sources(c))
	if err == nil {
		_, err = plan.Replace("mesh", Entry{Command: "/bin/extctl"})
	}
	if err == nil {
		err = plan.Apply()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestUndoAfterAChange undoes an import with --replace after the client has written its file again: only the entries change.
func TestUndoAfterAChange(t *testing.T) {
	e, path := place(t, ".cursor/mcp.json", `{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y", "disabled": true}}}`)
	importCursor(t, e)
	tree, err := document.ParseJSON(read(t, path))
	if err != nil {
		t.Fatal(err)
	}
	tree["theme"] = "dark"
	data, err := json.MarshalIndent(tree, "", "\t")
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	done, err := e.UndoImport()
	if err != nil || done[0].Action != "edited" {
		t.Fatalf("%+v %v", done, err)
	}
	var got struct {
		MCPServers map[string]struct{ Command string } `json:"mcpServers"`
		Theme      string
	}
	if err := json.Unmarshal([]byte(read(t, path)), &got); err != nil || got.Theme != "dark" || got.MCPServers["a"].Command != "x" || len(got.MCPServers) != 2 {
		t.Errorf("%+v %v", got, err)
	}
}

// TestChangedMeanwhile changes the file while it is being edited, once and then always.
func TestChangedMeanwhile(t *testing.T) {
	for attempts, want := range map[int]error{1: nil, 5: errBusy} {
		_, path := place(t, "x.json", "{}")
		n := 0
		_, _, err := update(path, false, func(old file) (string, error) {
			if n++; n <= attempts {
				if err := os.WriteFile(path, fmt.Appendf(nil, `{"n": %d}`, n), 0o600); err != nil {
					return "", err
				}
			}
			return old.text + "\n", nil
		})
		if !errors.Is(err, want) {
			t.Errorf("%d: %v", attempts, err)
		}
		if got := read(t, path); got != map[error]string{nil: "{\"n\": 1}\n", errBusy: `{"n": 3}`}[want] {
			t.Errorf("%d: %q", attempts, got)
		}
	}
}

// TestLinksAndOtherFiles follows a link to the file, and refuses what is no regular file.
func TestLinksAndOtherFiles(t *testing.T) {
	e, path := place(t, ".cursor/real.json", "{}")
	c, _ := Find("cursor")
	link, _ := e.Path(c, User)
	if err := os.Symlink(path, link); err != nil {
		t.Skip(err) // Windows without the privilege
	}
	s := Setup{Client: c, Scope: User, Name: "mesh", Entry: Entry{Command: "/bin/extctl"}}
	if _, err := e.Install(s); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(link); err != nil || target != path || !strings.Contains(read(t, path), "extctl") {
		t.Errorf("%s %v", target, err)
	}
	if _, err := e.Uninstall(s); err != nil || read(t, path) != "{}" {
		t.Errorf("%v %s", err, read(t, path))
	}
	if err := errors.Join(os.Remove(link), os.Mkdir(link, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Install(s); err == nil || !strings.Contains(err.Error(), "a directory") {
		t.Errorf("%v", err)
	}
}
