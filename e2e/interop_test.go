//go:build interop

// The tests in this file need the packages of e2e/interop (npm ci there); .ci/run installs them and runs
// these with -tags interop.

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// mcpServer writes a manifest for one of the published MCP servers, by the name of its package.
func mcpServer(t *testing.T, dir, id, name string, args ...string) {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join("interop", "node_modules", ".bin", "mcp-server-"+name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: run npm ci in e2e/interop first", err)
	}
	list, err := json.Marshal(append([]string{}, args...))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, id, "plugin.toml"), fmt.Sprintf(`
[plugin]
id = %q
version = "1.0.0"
[capabilities]
tools = ["*"]
[requires]
bins = ["node"]
[transport]
type = "stdio"
dialect = "mcp"
command = %q
args = %s
handshake_timeout = "1m"
`, id, bin, list))
}

// up runs a registry and a bridge with the extensions in dir, and returns the server's URL when all of ids are ready.
func up(t *testing.T, dir string, ids ...string) (url string) {
	t.Helper()
	url, _ = startNATS(t)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	start(t, env, program(t, "stdio-bridge"), "--name", "interop", "--search-path", dir)
	for _, id := range ids {
		if out, stderr, code := extctl(t, url, "wait", id, "--for", "ready", "--timeout", "60s"); code != 0 {
			t.Fatalf("%s does not become ready: exit %d, %s%s", id, code, out, stderr)
		}
	}
	return url
}

// callResult is the result of an MCP tool.
type callResult struct {
	Content []struct {
		Type, Text, Data string
	}
	StructuredContent json.RawMessage
	IsError           bool
}

func call(t *testing.T, url string, args ...string) callResult {
	t.Helper()
	out, stderr, code := extctl(t, url, append([]string{"call"}, args...)...)
	if code != 0 {
		t.Fatalf("extctl call %v: exit %d, %s%s", args, code, out[:min(len(out), 500)], stderr)
	}
	var r callResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("extctl call %v: %v: %.500s", args, err, out)
	}
	return r
}

func TestServerEverything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mcpServer(t, dir, "everything", "everything")
	url := up(t, dir, "everything")

	const odd = `"quoted" <&> é 😀 \ / 9007199254740993`
	if r := call(t, url, "ext_everything_echo", "message="+odd); len(r.Content) != 1 || r.Content[0].Text != "Echo: "+odd {
		t.Errorf("echo: %+v", r)
	}
	if r := call(t, url, "ext_everything_get-tiny-image"); len(r.Content) < 2 || !hasImage(r) {
		t.Errorf("tiny image: %d items", len(r.Content))
	}
	if r := call(t, url, "ext_everything_get-structured-content", "location=Chicago"); len(r.StructuredContent) == 0 {
		t.Errorf("structured content: %+v", r)
	}
	began := time.Now()
	if r := call(t, url, "ext_everything_trigger-long-running-operation", "duration=3", "steps=3"); len(r.Content) != 1 || !strings.Contains(r.Content[0].Text, "ompleted") {
		t.Errorf("long operation: %+v", r)
	}
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("the long operation took %s", took)
	}
}

func hasImage(r callResult) bool {
	for _, c := range r.Content {
		if c.Type == "image" && len(c.Data) > 100 {
			return true
		}
	}
	return false
}

func TestServerFilesystem(t *testing.T) {
	t.Parallel()
	dir, files := t.TempDir(), t.TempDir()
	text := strings.Repeat("0123456789abcdef\n", 6<<20/17)
	write(t, filepath.Join(files, "large.txt"), text)
	mcpServer(t, dir, "filesystem", "filesystem", files)
	url := up(t, dir, "filesystem")
	r := call(t, url, "ext_filesystem_read_text_file", "path="+filepath.Join(files, "large.txt"))
	if len(r.Content) != 1 || r.Content[0].Text != text {
		t.Errorf("6 MB file: %d items, isError %v", len(r.Content), r.IsError)
	}
}

func TestServerMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mcpServer(t, dir, "graph", "memory") // "memory" is reserved
	url := up(t, dir, "graph")
	call(t, url, "ext_graph_create_entities", `{"entities":[{"name":"Ada","entityType":"person","observations":["likes engines"]}]}`)
	if r := call(t, url, "ext_graph_search_nodes", "query=engines"); len(r.Content) == 0 || !strings.Contains(r.Content[0].Text, "Ada") {
		t.Errorf("what one caller stored another does not find: %+v", r)
	}
}
