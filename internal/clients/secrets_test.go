package clients

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// TestAssignmentsInFlags: a flag with a value that assigns a secret.
func TestAssignmentsInFlags(t *testing.T) {
	m := member{Args: []string{"run", "--env=API_KEY=sk-0123456789", "--header=Authorization: Bearer 0123456789", "--env=DEBUG=1", "--url=http://h/x", "--mcp=https://h/s/abcdefghij0123456789/mcp"},
		Env: map[string]string{"MCP_URL": "https://h/mcp?apiKey=k1"}}
	moved := moveSecrets("s", &m)
	got := strings.Join(m.Args, " ")
	want := "run --env=API_KEY=${file:secrets/s.API_KEY} --header=Authorization: ${file:secrets/s.Authorization} --env=DEBUG=1 --url=http://h/x --mcp=https://h/s/${file:secrets/s.url}/mcp"
	if got != want || len(moved) != 4 || moved[1].value != "Bearer 0123456789" || m.Env["MCP_URL"] != "https://h/mcp?apiKey=${file:secrets/s.apiKey}" {
		t.Errorf("%s, %+v, %s\nwant %s", got, moved, m.Env, want)
	}
}

// TestKeysInPaths: the keys in the path of a URL are in files, and the bridge uses the same URL as the client.
func TestKeysInPaths(t *testing.T) {
	const url = "https://h.example.com/fc-0123456789abcdef0123/v2/abcdefghij0123456789?apiKey=k1&x=2"
	m := member{URL: url}
	moved := moveSecrets("s", &m)
	if want := "https://h.example.com/${file:secrets/s.url}/v2/${file:secrets/s.url-2}?apiKey=${file:secrets/s.apiKey}&x=2"; m.URL != want {
		t.Errorf("%s, want %s", m.URL, want)
	}
	checked, reason := check("imported", "s", m)
	if checked == nil {
		t.Fatal(reason)
	}
	root := t.TempDir()
	e := manifest.Expander{Root: root, ReadFile: func(path string) ([]byte, error) {
		for _, s := range moved {
			if path == filepath.Join(root, filepath.FromSlash(s.file)) {
				return []byte(s.fileText()), nil
			}
		}
		return nil, fs.ErrNotExist
	}}
	if resolved, _, err := checked.Resolve(e); err != nil || resolved.URL != url {
		t.Errorf("%s, %v", resolved.URL, err)
	}
}
