package manifest

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestMembers(t *testing.T) {
	parent, diags := Parse("plugin.toml", []byte(everyKey), Options{})
	if parent == nil {
		t.Fatal(lines(diags))
	}
	parent.Transport.Env["OWN"] = "${PARENT_TOKEN}"
	members := parent.Members()
	if len(members) != 2 || members[0].Plugin.ID != "google.drive" || members[1].Plugin.ID != "google.gmail" {
		t.Fatalf("members %+v", members)
	}
	drive, gmail := members[0], members[1]
	for _, m := range members {
		if m.Parent != "google" || len(m.Hash) != 64 || m.Plugin.Version != "1.2.3" || m.Plugin.Priority != -7 ||
			!m.Context.Passthrough || m.Transport.Dialect != MCP || !slices.Equal(m.Capabilities.Tools, []string{"*"}) ||
			!reflect.DeepEqual(m.Requires, parent.Requires) || m.Container() || m.Members() != nil {
			t.Errorf("%s: %+v", m.Plugin.ID, m)
		}
	}
	if drive.Transport.Type != HTTP || gmail.Transport.Type != Stdio {
		t.Errorf("types %s, %s", drive.Transport.Type, gmail.Transport.Type)
	}

	// A parent's variables are its own; a member's include its parent's.
	if got := parent.Variables(); !slices.Equal(got, []string{"PARENT_TOKEN"}) {
		t.Errorf("parent's variables %q", got)
	}
	if got := gmail.Variables(); !slices.Equal(got, []string{"GMAIL_TOKEN", "PARENT_TOKEN", "PKG"}) {
		t.Errorf("gmail's variables %q", got)
	}
	if got := drive.Variables(); !slices.Equal(got, []string{"KEY", "PARENT_TOKEN", "TOKEN"}) {
		t.Errorf("drive's variables %q", got)
	}
}

// TestMembersHash checks that a member's hash, a change of which restarts it, changes with everything that it is run
// with, and not with the other servers.
func TestMembersHash(t *testing.T) {
	const container = "[plugin]\nid = \"w\"\nversion = \"1.0.0\"\n"
	hashOf := func(toml, sidecar string) string {
		t.Helper()
		m, diags := Parse("p", []byte(toml), Options{Sidecar: &Sidecar{Path: ".mcp.json", Data: []byte(sidecar)}})
		if m == nil {
			t.Fatal(lines(diags))
		}
		return m.Members()[0].Hash
	}
	one := hashOf(container, `{"mcpServers": {"a": {"command": "x"}}}`)
	if two := hashOf(container+"# a comment", `{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}}}`); one != two {
		t.Errorf("another server changes the hash from %s to %s", one, two)
	}
	if inline := hashOf(container+"[mcp_servers.a]\ncommand = \"x\"\n[mcp_servers.b]\ncommand = \"x\"\n", "{}"); one != inline {
		t.Errorf("the file of the server changes the hash from %s to %s", one, inline)
	}
	for _, server := range []string{`"command": "y"`, `"command": "x", "args": ["a"]`, `"command": "x", "env": {"A": "b"}`,
		`"command": "x", "cwd": "sub"`, `"command": "x", "handshake_timeout": "1m"`, `"url": "http://h"`} {
		if other := hashOf(container, `{"mcpServers": {"a": {`+server+`}}}`); other == one {
			t.Errorf("the hash is the same with %s", server)
		}
	}
	for _, extra := range []string{"priority = 1\n", "[requires]\nenv = [\"A\"]\n", "[context]\npassthrough = true\n"} {
		if other := hashOf(container+extra, `{"mcpServers": {"a": {"command": "x"}}}`); other == one {
			t.Errorf("the hash is the same with %s", extra)
		}
	}
}

func TestSidecarDirectoryWithoutLetters(t *testing.T) {
	m, diags := ParseSidecar("123", ".mcp.json", []byte(`{"mcpServers": {"a": {"command": "x"}}}`), Options{})
	if m != nil || len(diags) != 1 || !strings.Contains(diags[0].Message, `the directory's name "123" cannot be converted to an id`) {
		t.Errorf("got %+v, %v", m, diags)
	}
}

func TestResolveMember(t *testing.T) {
	parent := &Manifest{
		Plugin: Plugin{ID: "google", Version: "1.0.0"},
		MCPServers: map[string]Transport{
			"gmail": {
				Type: Stdio, Command: "${EXTENSION_ROOT}/bin/${A}", Args: []string{"${EXTENSION_ID}"},
				Env: map[string]string{"E": "${A}"}, Cwd: "sub/${A}",
			},
			"home":  {Type: Stdio, Command: "x"},
			"drive": {Type: HTTP, URL: "https://${HOST}/?k=${A}"},
		},
	}
	e := host()
	e.ID = ""
	var got []Transport
	for _, m := range parent.Members() {
		tr, missing, err := m.Resolve(e)
		if err != nil || missing != nil {
			t.Fatal(missing, err)
		}
		got = append(got, tr)
	}
	want := []Transport{
		{Type: HTTP, Dialect: MCP, URL: "https://example.com/?k=one"},
		{
			Type: Stdio, Dialect: MCP, Command: e.Root + "/bin/one", Args: []string{"google"},
			Env: map[string]string{"E": "one"}, Cwd: filepath.Join(e.Root, "sub", "one"),
		},
		{Type: Stdio, Dialect: MCP, Command: "x", Cwd: e.Root},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	if parent.MCPServers["gmail"].Args[0] != "${EXTENSION_ID}" {
		t.Error("Resolve changed the parent's server")
	}
}

func TestContainer(t *testing.T) {
	m, diags := Parse("p", []byte("[plugin]\nid = \"c\"\nversion = \"1.0.0\"\n"),
		Options{Sidecar: &Sidecar{Path: ".mcp.json", Data: []byte(`{"mcpServers": {"a": {"command": "x"}}}`)}})
	if m == nil {
		t.Fatal(lines(diags))
	}
	if !m.Container() || m.Transport.Dialect != "" || len(m.Members()) != 1 || m.Members()[0].Plugin.ID != "c.a" {
		t.Errorf("%+v", m)
	}
}
