package gate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// taker is an extension that uses variables and files in every possible way, and a member that uses more.
const taker = `
[plugin]
id = "taker"
version = "1.0.0"
[capabilities]
tools = ["x"]
[transport]
type = "http"
url = "https://${HOST:-example.com}/"
headers = { A = "${TOKEN}", B = "${MESH_URL:-}", C = "${file:FILES/key}", D = "${file:own}", E = "${file:link}", F = "${HOME}", G = "${file:FILES/bridge.creds}" }
[requires]
env = ["KEY", "COPY"]
`

func TestGrants(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "taker")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"taker/own", "key", "linked", "bridge.creds"} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../linked", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	m, diags := manifest.Parse("plugin.toml", []byte(strings.ReplaceAll(taker, "FILES", dir)), manifest.Options{Sidecar: &manifest.Sidecar{
		Path: ".mcp.json", Data: []byte(`{"mcpServers": {"m": {"command": "m", "args": ["${ARG:-}"]}}}`)}})
	if m == nil {
		t.Fatal(diags)
	}
	env := map[string]string{
		"TOKEN": "t", "KEY": "hunter22", "HOME": "/home/ada", "ARG": "a",
		"MESH_URL": "nats://a:b@n1,nats://bridge:hunter22@n2", "COPY": "jwt eyJhbGciOiJlZDI1NTE5In0.x",
	}
	file := func(name string) string { return "file:" + filepath.Join(dir, name) }
	mesh := Credentials{Values: []string{"hunter22", "eyJhbGciOiJlZDI1NTE5In0", ""}, Files: []string{filepath.Join(dir, "none"), filepath.Join(dir, "bridge.creds")}}
	for _, tt := range []struct {
		name       string
		grants     Grants
		notGranted []string
		mesh       []string
	}{
		{"inherit", Grants{}, []string{file("bridge.creds"), file("key"), file("linked")}, nil},
		{"inherit, granted", Grants{Allowed: []string{file("key"), file("linked"), file("bridge.creds")}}, nil, nil},
		{"granted, nothing is", Grants{Strict: true}, []string{"COPY", "HOST", "KEY", "MESH_URL", "TOKEN", file("bridge.creds"), file("key"), file("linked")}, nil},
		{"granted, some is", Grants{Strict: true, Allowed: []string{"KEY", "TOKEN", "HOME", file("key"), "UNUSED"}}, []string{"COPY", "HOST", "MESH_URL", file("bridge.creds"), file("linked")}, nil},
		{"the mesh's own", Grants{Mesh: mesh}, []string{file("key"), file("linked")}, []string{"COPY", "KEY", "MESH_URL", file("bridge.creds")}},
		{"the mesh's own, granted", Grants{Mesh: mesh, Strict: true, Allowed: []string{"COPY", "HOST", "KEY", "MESH_URL", "TOKEN", file("key"), file("linked"), file("bridge.creds")}},
			nil, []string{"COPY", "KEY", "MESH_URL", file("bridge.creds")}},
	} {
		h := Host{Grants: tt.grants, LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok }}
		r := h.CheckManifest(m, root)
		if !slices.Equal(r.NotGranted, tt.notGranted) || !slices.Equal(r.Mesh, tt.mesh) {
			t.Errorf("%s: not granted %q, want %q; the mesh's %q, want %q", tt.name, r.NotGranted, tt.notGranted, r.Mesh, tt.mesh)
		}
		if refused := len(tt.notGranted)+len(tt.mesh) > 0; r.Refused() != refused || r.OK() == refused {
			t.Errorf("%s: refused %v, OK %v", tt.name, r.Refused(), r.OK())
		}
		member := h.CheckManifest(m.Members()[0], root)
		if want := tt.grants.Strict; slices.Contains(member.NotGranted, "ARG") != want {
			t.Errorf("%s: the member's are %q", tt.name, member.NotGranted)
		}
	}
	r := Result{NotGranted: []string{"TOKEN", "file:/run/x"}, Mesh: []string{"NATS_URL"}}
	for _, want := range []string{"requires TOKEN, file:/run/x, not granted: ", "; requires NATS_URL, which contains credentials of the mesh itself"} {
		if !strings.Contains(r.String(), want) {
			t.Errorf("%q is not in %q", want, r)
		}
	}
}

// TestShortCredentials: a short password of the mesh is not recognised within other values.
func TestShortCredentials(t *testing.T) {
	c := Credentials{Values: []string{"dev", "0123456789abcdef"}}
	for value, want := range map[string]bool{
		"dev": true, "nats://b:dev@n": true, "/dev/null": false, "development": false, "": false,
		"x0123456789abcdefx": true, "0123456789": false,
	} {
		if c.in(value) != want {
			t.Errorf("%q: %v", value, !want)
		}
	}
	env, stripped := childEnv([]string{"BRIDGE=dev", "A=/dev/null"}, EnvOptions{Mesh: c, Allow: []string{"BRIDGE"}}, false)
	if !slices.Equal(env, []string{"A=/dev/null"}) || !slices.Equal(stripped, []string{"BRIDGE"}) {
		t.Errorf("%q, stripped %q", env, stripped)
	}
}
