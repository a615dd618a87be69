package gate

import (
	"slices"
	"testing"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// bundle is an extension with a placeholder, and a member with another placeholder.
const bundle = `
[plugin]
id = "google"
version = "1.0.0"
[capabilities]
tools = ["search"]
[transport]
type = "stdio"
command = "server"
env = { DSN = "${file:/run/secrets/dsn}", BASE = "${BASE_URL}", LEVEL = "${LEVEL:-info}", MODE = "fast" }
[requires]
env = ["ACCOUNT"]
[mcp_servers.gmail]
type = "stdio"
command = "gmail"
env = { USER = "${GMAIL_USER}" }
`

func parseBundle(t *testing.T) (parent, member *manifest.Manifest) {
	t.Helper()
	m, diags := manifest.Parse("plugin.toml", []byte(bundle), manifest.Options{})
	if m == nil || len(m.Members()) != 1 {
		t.Fatal(diags)
	}
	return m, m.Members()[0]
}

func TestCheckManifest(t *testing.T) {
	parent, member := parseBundle(t)
	all := []string{"ACCOUNT", "BASE_URL", "GMAIL_USER"}
	for _, tt := range []struct {
		name   string
		env    map[string]string
		parent []string
		member []string
	}{
		{"all set", map[string]string{"ACCOUNT": "a", "BASE_URL": "b", "GMAIL_USER": "c"}, nil, nil},
		{"none set", nil, all[:2], all},
		{"empty", map[string]string{"ACCOUNT": "", "BASE_URL": "", "GMAIL_USER": ""}, all[:1], all[:1]},
		{"the member's", map[string]string{"ACCOUNT": "a", "BASE_URL": "b"}, nil, all[2:]},
		{"the parent's placeholder gates both", map[string]string{"ACCOUNT": "a", "GMAIL_USER": "c"}, all[1:2], all[1:2]},
		{"the parent's env gates both", map[string]string{"BASE_URL": "b", "GMAIL_USER": "c"}, all[:1], all[:1]},
	} {
		h := Host{LookupEnv: func(name string) (string, bool) { v, ok := tt.env[name]; return v, ok }}
		if r := h.CheckManifest(parent, "/"); !slices.Equal(r.MissingEnv, tt.parent) || r.OK() != (tt.parent == nil) {
			t.Errorf("%s: parent %+v, want %q", tt.name, r, tt.parent)
		}
		if r := h.CheckManifest(member, "/"); !slices.Equal(r.MissingEnv, tt.member) || r.OK() != (tt.member == nil) {
			t.Errorf("%s: member %+v, want %q", tt.name, r, tt.member)
		}
	}
}

func TestDeclared(t *testing.T) {
	parent, member := parseBundle(t)
	if have, want := Declared(parent), []string{"ACCOUNT", "BASE_URL", "DSN"}; !slices.Equal(have, want) {
		t.Errorf("parent %q, want %q", have, want)
	}
	if have, want := Declared(member), []string{"ACCOUNT", "BASE_URL", "GMAIL_USER"}; !slices.Equal(have, want) {
		t.Errorf("member %q, want %q", have, want)
	}
	r := NewRedactor([]string{"BASE_URL=https://x.example"}, Declared(parent), map[string]string{"DSN": "pg://u:p@h", "MODE": "fastest"})
	if have, want := r.Redact("dial pg://u:p@h from https://x.example, fastest"), "dial [DSN] from [BASE_URL], fastest"; have != want {
		t.Errorf("%q, want %q", have, want)
	}
}
