package clients

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTwoEntries installs two entries in one file and takes them out in both orders.
func TestTwoEntries(t *testing.T) {
	for _, order := range [][]string{{"mesh", "research"}, {"research", "mesh"}} {
		e, path := place(t, ".cursor/mcp.json", `{"mcpServers":{"a":{"command":"x"}}}`)
		before := read(t, path)
		c, _ := Find("cursor")
		setup := func(name string) Setup {
			return Setup{Client: c, Scope: User, Name: name, Entry: Entry{Command: "/bin/extctl", Args: []string{"--profile", name}}}
		}
		for _, name := range []string{"mesh", "research"} {
			if _, err := e.Install(setup(name)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := e.Uninstall(setup(order[0])); err != nil {
			t.Fatal(err)
		}
		if got := read(t, path); strings.Contains(got, `"`+order[0]+`"`) || !strings.Contains(got, `"`+order[1]+`"`) {
			t.Errorf("without %s: %s", order[0], got)
		}
		out, err := e.Uninstall(setup(order[1]))
		if err != nil || order[1] == "mesh" && (out.Action != "restored" || read(t, path) != before) {
			t.Errorf("in the end: %+v %v %s", out, err, read(t, path))
		}
		if left := readServers(t, c, path); len(left) != 1 {
			t.Errorf("left: %v", left)
		}
	}
}

// readServers returns the servers of a client's file.
func readServers(t *testing.T, c Client, path string) map[string]any {
	t.Helper()
	tree, err := c.parse(read(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return lookup(tree, []string{c.key})
}

// TestEntryOfTeamServer installs the entry of a server on another machine, and lets the client write its file again.
func TestEntryOfTeamServer(t *testing.T) {
	e, path := place(t, ".cursor/mcp.json", `{"mcpServers":{}}`)
	c, _ := Find("cursor")
	s := Setup{Client: c, Scope: User, Name: "mesh", Entry: Entry{URL: "https://mesh.example.com/mcp", TokenVar: "TOKEN"}}
	install := func(action string) {
		t.Helper()
		if out, err := e.Install(s); err != nil || out.Action != action {
			t.Fatalf("%+v %v", out, err)
		}
	}
	install("added")
	rewrite := func() {
		t.Helper()
		if err := os.WriteFile(path, []byte(strings.Replace(read(t, path), "{", `{"theme":"dark",`, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite()
	if states := e.States(); !strings.Contains(stateOf(states, path).Mesh, "mesh") {
		t.Errorf("the entry is not known: %+v", states)
	}
	plan, err := e.PlanImport(filepath.Join(e.Dir, "extensions", "imported"), e.Sources(c))
	if err != nil || len(plan.Servers) != 1 || plan.Servers[0].Skipped != errMesh.Error() {
		t.Errorf("import: %+v %v", plan, err)
	}
	s.Entry.URL = "https://other.example.com/mcp"
	install("replaced")
	rewrite()
	if out, err := e.Uninstall(s); err != nil || out.Action != "removed" || len(readServers(t, c, path)) != 0 {
		t.Errorf("%+v %v", out, err)
	}
	// Somebody else's server of that name stays.
	if err := os.WriteFile(path, []byte(`{"mcpServers":{"mesh":{"url":"https://mesh.example.com/mcp"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Uninstall(s); !isExists(err) {
		t.Errorf("%v", err)
	}
	if _, err := e.Install(s); !isExists(err) {
		t.Errorf("%v", err)
	}
}

func isExists(err error) bool {
	_, ok := errors.AsType[*ExistsError](err)
	return ok
}

func stateOf(all []State, path string) (found State) {
	for _, s := range all {
		if s.Path == path {
			found = s
		}
	}
	return found
}

// TestIncompleteUndo undoes an import while the client's file cannot be read, and again when it can.
func TestIncompleteUndo(t *testing.T) {
	e, path := place(t, ".cursor/mcp.json", `{"mcpServers": {"a": {"command": "x"}}}`)
	before := read(t, path)
	importCursor(t, e)
	after := read(t, path)
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(e.Dir, "extensions", "imported", ".mcp.json")
	if done, err := e.UndoImport(); !errors.Is(err, ErrIncomplete) || len(done) < 2 || done[0].Action != "left" || !strings.Contains(read(t, manifest), `"x"`) {
		t.Errorf("%+v %v", done, err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte(after), 0o600)); err != nil {
		t.Fatal(err)
	}
	if done, err := e.UndoImport(); err != nil || read(t, path) != before {
		t.Errorf("%+v %v %s", done, err, read(t, path))
	}
	if _, err := os.Stat(manifest); err == nil {
		t.Error("the extension stays")
	}
}

// TestUninstallAfterReplacement: the entry was replaced after the client had written its file again. What uninstall restores is
// then not the file with the first entry.
func TestUninstallAfterReplacement(t *testing.T) {
	e, path := place(t, ".cursor/mcp.json", `{"mcpServers":{}}`)
	c, _ := Find("cursor")
	s := Setup{Client: c, Scope: User, Name: "mesh", Entry: Entry{Command: "/bin/extctl", Args: []string{"mcp"}}}
	if _, err := e.Install(s); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(read(t, path)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Entry.Args = []string{"mcp", "--only", "x"}
	if out, err := e.Install(s); err != nil || out.Action != "replaced" {
		t.Fatalf("%+v %v", out, err)
	}
	if out, err := e.Uninstall(s); err != nil || out.Action != "removed" || len(readServers(t, c, path)) != 0 {
		t.Errorf("%+v %v: %s", out, err, read(t, path))
	}
}

// TestExtendedEntry: what a client or its user adds to the entry stays with the next Install, and Uninstall removes the entry.
func TestExtendedEntry(t *testing.T) {
	e, path := place(t, ".cursor/mcp.json", `{"mcpServers":{}}`)
	c, _ := Find("cursor")
	s := Setup{Client: c, Scope: User, Name: "mesh", Entry: Entry{URL: "https://mesh.example.com/mcp"}}
	if _, err := e.Install(s); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(read(t, path), `"url"`, `"disabledTools":["x"],"url"`, 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := e.Install(s); err != nil || out.Action != "unchanged" || read(t, path) != text {
		t.Errorf("%+v %v: %s", out, err, read(t, path))
	}
	if out, err := e.Uninstall(s); err != nil || out.Action != "removed" || len(readServers(t, c, path)) != 0 {
		t.Errorf("%+v %v: %s", out, err, read(t, path))
	}
}

// TestSmallerEntry: what Install has written and does not write any more is taken away, and an entry that is switched off is
// written again.
func TestSmallerEntry(t *testing.T) {
	e, path := place(t, ".cursor/mcp.json", `{"mcpServers":{}}`)
	c, _ := Find("cursor")
	s := Setup{Client: c, Scope: User, Name: "mesh", Entry: Entry{URL: "http://127.0.0.1:7331/mcp", TokenVar: "T"}}
	if _, err := e.Install(s); err != nil || !strings.Contains(read(t, path), "Authorization") {
		t.Fatal(err, read(t, path))
	}
	s.Entry.TokenVar = ""
	if out, err := e.Install(s); err != nil || out.Action != "replaced" || strings.Contains(read(t, path), "Authorization") {
		t.Errorf("%+v %v: %s", out, err, read(t, path))
	}
	change := func(e Env, path, old, by string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(strings.Replace(read(t, path), old, by, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	change(e, path, `"url"`, `"disabled":true,"disabledTools":["x"],"url"`)
	if out, err := e.Install(s); err != nil || out.Action != "replaced" || strings.Contains(read(t, path), `"disabled"`) || !strings.Contains(read(t, path), "disabledTools") {
		t.Errorf("%+v %v: %s", out, err, read(t, path))
	}
	s.Entry.TokenVar = "T"
	if _, err := e.Install(s); err != nil {
		t.Fatal(err)
	}
	change(e, path, `"Authorization":`, `"X-Team":`) // the user's own header
	s.Entry.TokenVar = ""
	if out, err := e.Install(s); err != nil || out.Action != "unchanged" || !strings.Contains(read(t, path), "X-Team") {
		t.Errorf("%+v %v: %s", out, err, read(t, path))
	}

	// An entry by hand for a team's server is no other server because it is switched off.
	e, path = place(t, ".codex/config.toml", "[mcp_servers.mesh]\nurl = \"https://tools.example.com/mcp\"\ntool_timeout_sec = 300\nenabled = false\n")
	c, _ = Find("codex")
	s = Setup{Client: c, Scope: User, Name: "mesh", Entry: Entry{URL: "https://tools.example.com/mcp"}}
	if out, err := e.Install(s); err != nil || out.Action != "replaced" || strings.Contains(read(t, path), "enabled") {
		t.Errorf("%+v %v: %s", out, err, read(t, path))
	}
}

// TestPackagedClaude: the installer of Claude Desktop for Windows gives it a directory of its own.
func TestPackagedClaude(t *testing.T) {
	local := t.TempDir()
	e := Env{Config: "/config", Getenv: func(name string) string { return map[string]string{"LOCALAPPDATA": local}[name] }}
	c, _ := Find("claude-desktop")
	if path, _ := e.Path(c, User); path != filepath.FromSlash("/config/Claude/claude_desktop_config.json") {
		t.Errorf("without the package: %s", path)
	}
	settings := filepath.Join(local, "Packages", "Claude_pzs8sxrjxfjjc", "LocalCache", "Roaming")
	if err := os.MkdirAll(settings, 0o700); err != nil {
		t.Fatal(err)
	}
	if path, _ := e.Path(c, User); path != filepath.Join(settings, "Claude", "claude_desktop_config.json") {
		t.Errorf("with the package: %s", path)
	}
}

// TestHomeIsProject: in the home directory, the project's file of some clients is the user's. It is read once.
func TestHomeIsProject(t *testing.T) {
	e, _ := place(t, ".cursor/mcp.json", `{"mcpServers":{"a":{"command":"x"}}}`)
	e.Dir = e.Home
	c, _ := Find("cursor")
	if all := e.Sources(c); len(all) != 1 || all[0].Project != "" {
		t.Errorf("the sources are %+v", all)
	}
	n := 0
	for _, s := range e.States() {
		if s.Client == "cursor" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d states", n)
	}
}

// TestUndoWithoutTheFile: the client's file is missing, and its old entries are kept for another attempt.
func TestUndoWithoutTheFile(t *testing.T) {
	e, path := place(t, ".cursor/mcp.json", `{"mcpServers": {"a": {"command": "x"}}}`)
	importCursor(t, e)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if done, err := e.UndoImport(); !errors.Is(err, ErrIncomplete) || done[0].Action != "left" {
		t.Errorf("%+v %v", done, err)
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _ := Find("cursor")
	if done, err := e.UndoImport(); err != nil || len(readServers(t, c, path)) != 1 {
		t.Errorf("%+v %v %s", done, err, read(t, path))
	}
}

// TestPaths: some clients follow a variable of the system, and opencode's newer files have another name.
func TestPaths(t *testing.T) {
	e, _ := place(t, ".cursor/mcp.json", "{}")
	variables := map[string]string{}
	e.Getenv = func(name string) string { return variables[name] }
	path := func(name string, s Scope) string {
		c, _ := Find(name)
		p, _ := e.Path(c, s)
		return p
	}
	if got, want := path("opencode", User), filepath.Join(e.Home, ".config", "opencode", "opencode.json"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	variables["XDG_CONFIG_HOME"] = filepath.Join(e.Home, "xdg")
	if got, want := path("opencode", User), filepath.Join(e.Home, "xdg", "opencode", "opencode.json"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := path("cursor", User); got != filepath.Join(e.Home, ".cursor", "mcp.json") {
		t.Errorf("%s", got)
	}
	e.Dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(e.Dir, "opencode.jsonc"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := path("opencode", Project); filepath.Base(got) != "opencode.jsonc" {
		t.Errorf("%s", got)
	}
}

// TestOwnVariables: a variable in args that the entry takes from the client's environment is one of the environment; opencode's
// references to files depend on an unknown directory.
func TestOwnVariables(t *testing.T) {
	claude, _ := Find("claude-code")
	opencode, _ := Find("opencode")
	for _, tt := range []struct {
		client     Client
		raw        map[string]any
		arg, wrong string
	}{
		{claude, map[string]any{"command": "x", "args": []any{"${A}"}, "env": map[string]any{"A": "${A}"}}, "${A}", ""},
		{claude, map[string]any{"command": "x", "args": []any{"${A}"}, "env": map[string]any{"A": "1"}}, "$${A}", ""},
		{opencode, map[string]any{"command": []any{"x", "{file:/etc/key}"}}, "${file:/etc/key}", ""},
		{opencode, map[string]any{"command": []any{"x", "{file:~/.key}"}}, "", "only opencode knows"},
	} {
		m, _, err := server{source: &Source{client: tt.client}, name: "s", raw: tt.raw}.member()
		if tt.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%v: %v", tt.raw, err)
			}
		} else if err != nil || len(m.Args) != 1 || m.Args[0] != tt.arg {
			t.Errorf("%v: %q, %v", tt.raw, m.Args, err)
		}
	}
}

// TestInstallWithoutRecord: a file is not changed if that could not be undone, and the mesh's entry is found without a record.
func TestInstallWithoutRecord(t *testing.T) {
	e, path := place(t, ".cursor/mcp.json", `{"mcpServers":{"a":{"command":"x"}}}`)
	before := read(t, path)
	c, _ := Find("cursor")
	s := Setup{Client: c, Scope: User, Name: "mesh", Entry: Entry{Command: "/bin/extctl", Args: []string{"mcp"}}}
	state := e.State
	e.State = filepath.Join(path, "x") // below a file
	if _, err := e.Install(s); err == nil || read(t, path) != before {
		t.Errorf("installed, %v: %s", err, read(t, path))
	}
	e.State = state
	if _, err := e.Install(s); err != nil {
		t.Fatal(err)
	}
	e.State = filepath.Join(path, "x")
	if out, err := e.Uninstall(s); err != nil || out.Action != "removed" || read(t, path) != before {
		t.Errorf("%+v, %v: %s", out, err, read(t, path))
	}
}

// TestLock checks that one import waits for another.
func TestLock(t *testing.T) {
	e, _ := place(t, ".cursor/mcp.json", `{}`)
	unlock, err := e.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*lockPoll)
	defer cancel()
	if _, err := e.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("two imports at the same time: %v", err)
	}
	unlock()
	if unlock, err = e.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// TestUnreadableFiles: the entry for a file that cannot be changed is given, and one that is not named hides no others.
func TestUnreadableFiles(t *testing.T) {
	e, path := place(t, ".cursor/mcp.json", `{"mcpServers":{"a":{"command":"x"}}}`+strings.Repeat(" ", maxFile))
	c, _ := Find("cursor")
	_, err := e.Install(Setup{Client: c, Scope: User, Name: "mesh", Entry: Entry{Command: "/bin/extctl", Args: []string{"mcp"}}})
	if edit, ok := errors.AsType[*EditError](err); !ok || !strings.Contains(edit.Lines, "/bin/extctl") {
		t.Errorf("%v", err)
	}
	s := Source{Path: path, Label: "cursor", client: c, keys: [][]string{{"mcpServers"}}}
	dir := filepath.Join(t.TempDir(), "imported")
	if _, err := e.PlanImport(dir, []Source{s}); err == nil {
		t.Error("a file that was named is left out")
	}
	s.Optional = true
	other := Source{Label: "other", Text: `{"mcpServers":{"b":{"command":"y"}}}`, keys: [][]string{{"mcpServers"}}}
	plan, err := e.PlanImport(dir, []Source{s, other})
	if err != nil || len(plan.Servers) != 2 || plan.Servers[0].Skipped == "" || plan.Servers[1].Target == "" {
		t.Errorf("%+v, %v", plan, err)
	}
}
