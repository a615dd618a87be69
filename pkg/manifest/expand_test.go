package manifest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/document"
)

// host returns an Expander with a fixed environment and files.
func host() Expander {
	env := map[string]string{"A": "one", "EMPTY": "", "AGAIN": "${A}", "NL": "a\r\nb", "NUL": "a\x00", "HOST": "example.com"}
	root := string(filepath.Separator) + filepath.Join("srv", "ext")
	files := map[string]string{
		filepath.Join(root, "token"):      "t0ken\n",
		filepath.Join(root, "crlf"):       "t0ken\r\n",
		filepath.Join(root, "two"):        "a\n\n",
		filepath.Join(root, "mark"):       "\ufefft0ken\r\n", // as PowerShell writes it
		filepath.Join(root, "${A}"):       "odd",
		filepath.Join(root, "big"):        strings.Repeat("x", maxFileText+1),
		filepath.Join(root, "just"):       strings.Repeat("x", maxFileText),
		filepath.FromSlash("/run/secret"): "abs",
	}
	return Expander{
		Root: root, Files: []string{filepath.FromSlash("/run/secret")}, ID: "weather", Version: "1.0.0", AgentVersion: "2.0.0",
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			if s, ok := files[path]; ok {
				return []byte(s), nil
			}
			return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
		},
	}
}

func TestExpand(t *testing.T) {
	root := host().Root
	tests := []struct {
		in, want string
		missing  []string
		err      string // a part of it
	}{
		{in: "", want: ""},
		{in: "plain", want: "plain"},
		{in: "${EXTENSION_ROOT}|${EXTENSION_ID}|${EXTENSION_VERSION}|${AGENT_VERSION}", want: root + "|weather|1.0.0|2.0.0"},
		{in: "x${A}y${A}", want: "xoneyone"},
		{in: "${UNSET}${UNSET}-${OTHER}", want: "-", missing: []string{"UNSET", "OTHER"}},
		{in: "[${EMPTY}]", want: "[]"},
		{in: "${UNSET:-d}${EMPTY:-e}${A:-f}${UNSET:-}", want: "deone"},
		{in: "${UNSET:-a:-b c\n$d}", want: "a:-b c\n$d"},
		{in: "${EXTENSION_ID:-d}", want: "weather"},
		{in: "${env:A}${env:UNSET:-d}", want: "oned"},
		{in: "${env:EXTENSION_ID}", missing: []string{"EXTENSION_ID"}},
		{in: "${AGAIN}", want: "${A}"}, // not expanded again
		{in: "$${A} $A $ $$ 5$", want: "${A} $A $ $$ 5$"},
		{in: "$$${A}", want: "$${A}"}, // from left to right: "$", then "$${"
		{in: "${file:token}|${file:crlf}|${file:two}|${file:mark}", want: "t0ken|t0ken|a\n|t0ken"},
		{in: "${file:${A}}", err: "do not nest"},
		{in: "${file:/run/secret}", want: "abs"},
		{in: "${file:./token}", want: "t0ken"},
		{in: "${file:/run/other}", err: "${file:/run/other}: the file is outside of the extension's directory"},
		{in: "${file:/run/../etc/passwd}", err: "does not grant it"},
		{in: "${file:" + filepath.Join(root, "token") + "}", want: "t0ken"},
		{in: "${file:../x}", err: "absolute path"},
		{in: "${file:a/../../x}", err: "absolute path"},
		{in: "${file:nope}", err: "${file:nope}: open"},
		{in: "${file:just}", want: strings.Repeat("x", maxFileText)},
		{in: "${file:big}", err: "more than 65536 bytes"},
		{in: strings.Repeat("${file:just}", 17), err: "over 1048576 bytes"},
		{in: "${", err: "never closed"},
		{in: "a ${A", err: "never closed"},
		{in: "${}", err: "is not a placeholder"},
		{in: "${file:}", err: "has no path"},
		{in: "${A-b}", err: "is not a placeholder"},
		{in: "${A:-${A}}", err: "do not nest"},
	}
	for _, tt := range tests {
		out, missing, err := host().Expand(tt.in)
		switch {
		case tt.err != "":
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("Expand(%q): error %v, want %q", document.Clip(tt.in, 40), err, tt.err)
			}
		case err != nil || out != tt.want || !slices.Equal(missing, tt.missing):
			t.Errorf("Expand(%q) = %q, %q, %v; want %q, %q", document.Clip(tt.in, 40), document.Clip(out, 40), missing, err, document.Clip(tt.want, 40), tt.missing)
		}
	}
}

// TestExpandDefaults uses the operating system's environment and files.
func TestExpandDefaults(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("EXTMESH_TEST_VALUE", "v")
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 2*maxFileText), 0o600); err != nil {
		t.Fatal(err)
	}
	e := Expander{Root: dir}
	if out, missing, err := e.Expand("${EXTMESH_TEST_VALUE} ${file:f}"); out != "v text" || missing != nil || err != nil {
		t.Errorf("got %q, %q, %v", out, missing, err)
	}
	for path, want := range map[string]string{"big": "more than", ".": "not a regular file", "none": "no such file"} {
		if _, _, err := e.Expand("${file:" + path + "}"); err == nil || !strings.Contains(err.Error(), want) && want != "no such file" {
			t.Errorf("${file:%s}: %v, want %s", path, err, want)
		}
	}
	if _, _, err := e.Expand("${file:none}"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v does not wrap os.ErrNotExist", err)
	}
}

func TestResolve(t *testing.T) {
	m := &Manifest{
		Plugin: Plugin{ID: "w", Version: "3.0.0"},
		Transport: Transport{
			Type: Stdio, Command: "${A}", Args: []string{"${A}"},
			Env: map[string]string{"X": "${EXTENSION_ID}-${EXTENSION_VERSION}", "Y": "${B}${C}", "Z": "${C}"},
		},
	}
	e := host()
	e.ID, e.Version = "", "" // taken from the manifest
	got, missing, err := m.Resolve(e)
	if err != nil {
		t.Fatal(err)
	}
	want := Transport{
		Type: Stdio, Command: "${A}", Args: []string{"${A}"}, // not in [transport]
		Env: map[string]string{"X": "w-3.0.0", "Y": "", "Z": ""},
	}
	if !reflect.DeepEqual(got, want) || !slices.Equal(missing, []string{"B", "C"}) {
		t.Errorf("got %+v, missing %q", got, missing)
	}
	if m.Transport.Env["Z"] != "${C}" {
		t.Error("Resolve changed the manifest")
	}
	if vars := m.Variables(); !slices.Equal(vars, []string{"B", "C"}) {
		t.Errorf("Variables: %q", vars)
	}
}

func TestResolveFaults(t *testing.T) {
	tests := []struct {
		name   string
		in     Transport
		parent string
		want   string
	}{
		{"URL", Transport{Type: HTTP, URL: "${A}"}, "", "url: after replacing its placeholders it does not begin with http:// or https:// and a host"},
		{"blank URL", Transport{Type: HTTP, URL: "${EMPTY}"}, "", "url: after replacing its placeholders it is blank"},
		{"query", Transport{Type: HTTP, URL: "http://${HOST}/${file:q}"}, "", "${file:q}: open"},
		{"header", Transport{Type: HTTP, URL: "http://${HOST}", Headers: map[string]string{"H": "${NL}"}}, "", "headers.H: after replacing its placeholders it contains a line break"},
		{"env", Transport{Type: Stdio, Command: "x", Env: map[string]string{"E": "${NUL}"}}, "", "env.E: after replacing its placeholders it contains a NUL"},
		{"command", Transport{Type: Stdio, Command: "${EMPTY}"}, "p", "command: after replacing its placeholders it is blank"},
		{"argument", Transport{Type: Stdio, Command: "x", Args: []string{"", "${NUL}"}}, "p", "args[1]: after replacing its placeholders it contains a NUL"},
		{"all", Transport{Type: Stdio, Command: "${", Cwd: "${", Env: map[string]string{"A": "${"}}, "p", "env.A: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := &Manifest{Plugin: Plugin{ID: "w"}, Transport: tt.in, Parent: tt.parent}
			_, _, err := m.Resolve(host())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	// A missing variable is reported only once, as missing.
	m := &Manifest{Transport: Transport{Type: HTTP, URL: "${UNSET}"}}
	if _, missing, err := m.Resolve(host()); err != nil || !slices.Equal(missing, []string{"UNSET"}) {
		t.Errorf("got %q, %v", missing, err)
	}
}

// A manifest of a few hundred lines may refer to a large file in each of them.
func TestResolveIsBounded(t *testing.T) {
	long := strings.Repeat("x", maxFileText)
	reads := 0
	e := Expander{Root: "/", ReadFile: func(string) ([]byte, error) { reads++; return []byte(long), nil }}
	m := &Manifest{Plugin: Plugin{ID: "a", Version: "1.0.0"}, Transport: Transport{Type: Stdio, Command: "x", Env: map[string]string{}}}
	add := func(n int) {
		for range n {
			m.Transport.Env[fmt.Sprintf("V%05d", len(m.Transport.Env))] = "${file:long}"
		}
	}
	add(maxResolved / maxFileText)
	if _, _, err := m.Resolve(e); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	add(10_000)
	reads = 0
	if _, _, err := m.Resolve(e); err == nil || !strings.HasPrefix(err.Error(), "env.V00064: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v; want one error, at the first value over the limit", err)
	}
	if limit := maxResolved/maxFileText + 1; reads > limit {
		t.Errorf("%d files were read, want at most %d", reads, limit)
	}
}

// TestFilesStayInRoot: no symbolic link in ${file:} leads out of the extension's directory, unless the host grants
// its target.
func TestFilesStayInRoot(t *testing.T) {
	dir := t.TempDir()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root")
	for path, text := range map[string]string{"root/own": "own", "root/sub/deep": "deep", "key": "key", "other/token": "token"} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"root/out": "../key", "root/abs": filepath.Join(dir, "key"), "root/dir": "../other", "root/in": "sub/deep",
		"root/absin": filepath.Join(root, "own"), "root/chain": "out", "root/broken": "nothing", "rooted": "root",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	key, token := filepath.Join(dir, "key"), filepath.Join(dir, "other", "token")
	for _, tt := range []struct {
		path, outside string
		want          string // without Files
		granted       string // with Files key and token
	}{
		{"own", "", "own", "own"},
		{"sub/deep", "", "deep", "deep"},
		{"in", "", "deep", "deep"},
		{"absin", "", "own", "own"},
		{filepath.Join(root, "own"), "", "own", "own"},
		{"out", key, "", "key"},
		{"abs", key, "", "key"},
		{"chain", key, "", "key"},
		{"dir/token", token, "", "token"},
		{key, key, "", "key"},
		{root + "/../key", key, "", "key"},
		{filepath.Join(dir, "none"), filepath.Join(dir, "none"), "", ""},
		{"broken", "", "", ""},
		{"none", "", "", ""},
	} {
		for _, at := range []string{root, filepath.Join(dir, "rooted")} {
			if strings.HasPrefix(tt.path, root) && at != root {
				continue // outside of the root, judging by the paths
			}
			e := Expander{Root: at}
			if have := e.Outside(tt.path); have != tt.outside {
				t.Errorf("Outside(%s) = %q, want %q", tt.path, have, tt.outside)
			}
			if have, _, err := e.Expand("${file:" + tt.path + "}"); have != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("%s in %s: %q, %v; want %q", tt.path, at, have, err, tt.want)
			}
			e.Files = []string{key, token}
			if have, _, err := e.Expand("${file:" + tt.path + "}"); have != tt.granted || (err == nil) != (tt.granted != "") {
				t.Errorf("%s in %s, granted: %q, %v; want %q", tt.path, at, have, err, tt.granted)
			}
		}
	}
}

func TestNeeds(t *testing.T) {
	m, diags := Parse("plugin.toml", []byte(`
[plugin]
id = "a"
version = "1.0.0"
[capabilities]
tools = ["t"]
[transport]
type = "http"
url = "https://${HOST:-h}/${EXTENSION_ID}"
headers = { A = "${file:/run/a}${TOKEN}", B = "$${NOT}${file:b}" }
[requires]
env = ["KEY", "TOKEN"]
`), Options{Sidecar: &Sidecar{".mcp.json", []byte(`{"mcpServers": {"m": {"command": "${CMD}", "args": ["${ARG:-x}"], "env": {"E": "${file:/run/m}"}}}}`)}})
	if m == nil {
		t.Fatal(diags)
	}
	if have, want := m.Needs(), (Needs{[]string{"HOST", "KEY", "TOKEN"}, []string{"/run/a", "b"}}); !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
	have := m.Members()[0].Needs()
	if want := (Needs{[]string{"ARG", "CMD", "HOST", "KEY", "TOKEN"}, []string{"/run/a", "/run/m", "b"}}); !reflect.DeepEqual(have, want) {
		t.Errorf("member: have %+v\nwant %+v", have, want)
	}
}
