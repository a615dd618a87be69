//go:build interop

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// published is a server from npm: its program, and a call that needs no network and has one answer.
type published struct {
	id, program string
	args        []string
	env         map[string]string
	tool, call  string
}

// publishedServers are servers of thirteen makers.
func publishedServers(files string) []published {
	return []published{
		{id: "everything", program: "mcp-server-everything", tool: "get-structured-content", call: `{"location":"Chicago"}`},
		{id: "files", program: "mcp-server-filesystem", args: []string{files}, tool: "list_directory", call: `{"path":` + quoted(files) + `}`},
		{id: "graph", program: "mcp-server-memory", env: map[string]string{"MEMORY_FILE_PATH": filepath.Join(files, "graph.json")}, tool: "read_graph", call: `{}`},
		{id: "thinking", program: "mcp-server-sequential-thinking", tool: "sequentialthinking", call: `{"thought":"1 + 1 = 2","nextThoughtNeeded":false,"thoughtNumber":1,"totalThoughts":1}`},
		{id: "context7", program: "context7-mcp", tool: "resolve-library-id", call: `{}`},
		{id: "notion", program: "notion-mcp-server", env: map[string]string{"NOTION_TOKEN": "ntn_none"}},
		{id: "playwright", program: "playwright-mcp", args: []string{"--headless"}, tool: "browser_resize", call: `{"width":"wide"}`},
		{id: "tavily", program: "tavily-mcp", env: map[string]string{"TAVILY_API_KEY": "none"}},
		{id: "times", program: "time-mcp", tool: "days_in_month", call: `{"date":"2026-02-01"}`},
		{id: "runner", program: "mcp-server-code-runner", tool: "run-code", call: `{"code":"console.log(2**60, 'é')","languageId":"javascript"}`},
		{id: "commands", program: "mcp-server-commands", tool: "run_command", call: `{"command":"echo one; echo two >&2; exit 3"}`},
		{id: "exa", program: "exa-mcp-server", env: map[string]string{"EXA_API_KEY": "none"}, tool: "web_search_exa", call: `{}`},
		{id: "fetch", program: "mcp-fetch", tool: "imageFetch", call: `{"url":"not a url"}`},
		{id: "gitlab", program: "mcp-gitlab", env: map[string]string{"GITLAB_PERSONAL_ACCESS_TOKEN": "none"}, tool: "create_repository", call: `{"name":5}`},
		{id: "chart", program: "mcp-server-chart", tool: "generate_area_chart", call: `{}`},
		{id: "firecrawl", program: "firecrawl-mcp", env: map[string]string{"FIRECRAWL_API_KEY": "none"}, tool: "firecrawl_scrape", call: `{}`},
	}
}

func quoted(s string) string { b, _ := json.Marshal(s); return string(b) }

func (p published) path(t *testing.T) string {
	t.Helper()
	if p.program == "npx" {
		return p.program
	}
	bin, err := filepath.Abs(filepath.Join("interop", "node_modules", ".bin", p.program))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: run npm ci in e2e/interop first", err)
	}
	return bin
}

// writeManifest writes p as a user would have it: a file of servers as MCP clients read it.
func (p published) writeManifest(t *testing.T, dir string) {
	t.Helper()
	args, _ := json.Marshal(append([]string{}, p.args...))
	var env strings.Builder
	for k, v := range p.env {
		fmt.Fprintf(&env, "%s = %s\n", k, quoted(v))
	}
	write(t, filepath.Join(dir, p.id, "plugin.toml"), fmt.Sprintf(`
[plugin]
id = %q
version = "1.0.0"
[capabilities]
tools = ["*"]
[transport]
type = "stdio"
dialect = "mcp"
command = %q
args = %s
[transport.env]
%s`, p.id, p.path(t), args, env.String()))
}

// stdioServer is a server that the test itself connects to.
type stdioServer struct {
	t     *testing.T
	stdin io.Writer
	out   *bufio.Reader
	last  int
}

func (p published) start(t *testing.T) *stdioServer {
	t.Helper()
	cmd := exec.Command(p.path(t), p.args...)
	cmd.Env = os.Environ()
	for k, v := range p.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() })
	t.Cleanup(func() { late.Stop(); stdin.Close(); cmd.Process.Kill(); cmd.Wait() })
	s := &stdioServer{t: t, stdin: stdin, out: bufio.NewReaderSize(stdout, 1<<20)}
	s.request("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
	fmt.Fprintln(s.stdin, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return s
}

// request sends a request and returns the server's result, or the code and the message of its error.
func (s *stdioServer) request(method, params string) (result json.RawMessage, failure string) {
	s.t.Helper()
	s.last++
	fmt.Fprintf(s.stdin, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", s.last, method, params)
	for {
		line, err := s.out.ReadBytes('\n')
		if err != nil {
			s.t.Fatalf("%s: %v", method, err)
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Result json.RawMessage
			Error  *struct {
				Code    int
				Message string
			}
		}
		if json.Unmarshal(line, &m) != nil || m.Method != "" || string(m.ID) != fmt.Sprint(s.last) {
			continue
		}
		if m.Error != nil {
			return nil, fmt.Sprintf("%d %s", m.Error.Code, m.Error.Message)
		}
		return m.Result, ""
	}
}

// TestServerParity compares what sixteen published servers answer to the test itself, and through the mesh: the list of
// tools in its order and bytes, every member of every descriptor in the catalog, and a call of each.
func TestServerParity(t *testing.T) {
	files := t.TempDir()
	write(t, filepath.Join(files, "é.txt"), "text")
	servers := publishedServers(files)
	dir := t.TempDir()
	for _, p := range servers {
		p.writeManifest(t, dir)
	}
	url, _ := startNATS(t)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	began := time.Now()
	start(t, env, program(t, "stdio-bridge"), "--name", "interop", "--search-path", dir)
	for _, p := range servers {
		for extctlCode(t, url, "wait", p.id, "--timeout", "50s") != 0 {
			if time.Since(began) > 4*time.Minute {
				t.Fatalf("%s does not become ready", p.id)
			}
		}
	}
	nc := connect(t, url)
	catalog, err := mesh.LoadCatalog(t.Context(), nc, mesh.CatalogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog})
	tools, calls := 0, 0
	for _, p := range servers {
		t.Run(p.id, func(t *testing.T) {
			s := p.start(t)
			var own struct{ Tools []json.RawMessage }
			listed, _ := s.request("tools/list", "{}")
			if err := json.Unmarshal(listed, &own); err != nil || len(own.Tools) == 0 {
				t.Fatalf("%s: %v", listed, err)
			}
			tools += len(own.Tools)
			got, err := client.CallExt(t.Context(), p.id, "tools/list", nil)
			var through struct{ Tools []json.RawMessage }
			if err != nil || json.Unmarshal(got, &through) != nil || len(through.Tools) != len(own.Tools) {
				t.Fatalf("%d tools, want %d: %v", len(through.Tools), len(own.Tools), err)
			}
			e, _ := catalog.Get(p.id)
			for i, want := range own.Tools {
				if !bytes.Equal(through.Tools[i], want) {
					t.Errorf("tool %d:\n got %s\nwant %s", i, through.Tools[i], want)
				}
				compareDescriptor(t, e.Spec.Tools[i], want)
			}
			if e.Spec.Server == nil || e.Spec.Server.Version() == "" || !e.Spec.Server.Offers("tools") {
				t.Errorf("the catalog shows the server as %+v", e.Spec.Server)
			}
			if p.tool == "" {
				return
			}
			calls++
			want, wantErr := s.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, p.tool, p.call))
			result, err := client.Call(t.Context(), p.id+"/"+p.tool, json.RawMessage(p.call))
			gotErr := ""
			if err != nil {
				gotErr = fmt.Sprintf("%d %s", rpc.AsError(err).Code, rpc.AsError(err).Message)
			}
			if !bytes.Equal(result, want) || gotErr != wantErr {
				t.Errorf("%s:\n got %s %s\nwant %s %s", p.tool, result, gotErr, want, wantErr)
			}
		})
	}
	t.Logf("%d servers, %d tools, %d calls", len(servers), tools, calls)
}

// TestServerFortyAtOnce starts forty servers at once: none of them is killed in its first start for being slow together
// with the others.
func TestServerFortyAtOnce(t *testing.T) {
	files, dir := t.TempDir(), t.TempDir()
	servers := publishedServers(files)
	for n := len(servers); n < 40; n++ {
		again := servers[n%16]
		again.id += fmt.Sprint("-", n/16)
		servers = append(servers, again)
	}
	for _, p := range servers {
		p.writeManifest(t, dir)
	}
	allReady(t, dir, servers, 5*time.Minute)
}

// TestServerEmptyCache starts six usual servers with npx and an empty npm cache, twice: all of them become ready at their
// first start, and the cache is sound.
func TestServerEmptyCache(t *testing.T) {
	packages := map[string]string{"everything": "@modelcontextprotocol/server-everything@2026.8.31", "files": "@modelcontextprotocol/server-filesystem@2026.8.31",
		"graph": "@modelcontextprotocol/server-memory@2026.8.31", "thinking": "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
		"context7": "@upstash/context7-mcp@4.1.1", "playwright": "@playwright/mcp@0.0.83"}
	for n := range 2 {
		dir, cache := t.TempDir(), t.TempDir()
		var servers []published
		for id, name := range packages {
			args := []string{"-y", name}
			if id == "files" {
				args = append(args, dir)
			}
			servers = append(servers, published{id: id, program: "npx", args: args, env: map[string]string{"npm_config_cache": cache}})
		}
		for _, p := range servers {
			p.writeManifest(t, dir)
		}
		allReady(t, dir, servers, 5*time.Minute)
		if out, err := exec.Command("npm", "cache", "verify", "--cache", cache).CombinedOutput(); err != nil {
			t.Errorf("%d: %v: %s", n, err, out)
		}
	}
}

// allReady runs a registry and a bridge with the servers in dir, and waits until all are ready. None may fail meanwhile.
func allReady(t *testing.T, dir string, servers []published, limit time.Duration) {
	t.Helper()
	url, _ := startNATS(t)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	began := time.Now()
	bridge := start(t, env, program(t, "stdio-bridge"), "--name", "interop", "--search-path", dir)
	for _, p := range servers {
		for extctlCode(t, url, "wait", p.id, "--timeout", "50s") != 0 {
			if time.Since(began) > limit {
				shown, _, _ := extctl(t, url, "list")
				t.Fatalf("%s does not become ready:\n%s", p.id, shown)
			}
		}
	}
	t.Logf("%d servers were ready after %s", len(servers), time.Since(began).Round(time.Second))
	for _, failure := range []string{"extension did not start", "extension ended", "extension failed"} {
		if strings.Contains(bridge.output(), failure) {
			t.Errorf("the bridge logged %q", failure)
		}
	}
	bridge.stop(t, 15*time.Second)
}

func extctlCode(t *testing.T, url string, args ...string) int {
	_, _, code := extctl(t, url, args...)
	return code
}

// compareDescriptor compares a tool in the catalog with the descriptor of its server, member by member.
func compareDescriptor(t *testing.T, got mesh.Tool, descriptor json.RawMessage) {
	t.Helper()
	var want map[string]json.RawMessage
	if err := json.Unmarshal(descriptor, &want); err != nil {
		t.Fatal(err)
	}
	have := map[string]json.RawMessage{"inputSchema": got.InputSchema, "name": json.RawMessage(quoted(got.Own))}
	for _, m := range got.Extra {
		have[m.Key] = m.Value
	}
	var description string
	_ = json.Unmarshal(want["description"], &description) // it may be absent
	if _, after, ok := strings.Cut(got.Description, "] "); !ok || after != description {
		t.Errorf("%s: description %q, want %q", got.Own, got.Description, description)
	}
	delete(want, "description")
	for key, value := range want {
		if !bytes.Equal(compact(t, have[key]), compact(t, value)) {
			t.Errorf("%s: member %s:\n got %s\nwant %s", got.Own, key, have[key], value)
		}
		delete(have, key)
	}
	for key, value := range have {
		t.Errorf("%s: has a member %s that its server does not have: %s", got.Own, key, value)
	}
}

func compact(t *testing.T, raw json.RawMessage) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Errorf("%v in %s", err, raw)
	}
	return b.Bytes()
}
