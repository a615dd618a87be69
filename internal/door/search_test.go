package door

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// generated are n tools whose names and descriptions are combinations of common words.
func generated(n int) []mesh.Extension {
	verbs := []string{"get", "list", "create", "update", "delete", "search", "export", "import", "archive", "share"}
	things := []string{"invoice", "customer", "ticket", "deployment", "pipeline", "image", "message", "calendar event", "contact", "report",
		"branch", "issue", "document", "spreadsheet", "dashboard", "alert", "certificate", "order", "payment", "shipment"}
	places := []string{"billing", "crm", "helpdesk", "cluster", "ci", "registry", "chat", "office", "monitor", "shop"}
	var out []mesh.Extension
	for i := 0; len(out) < n/200; i++ {
		id := fmt.Sprintf("%s%02d", places[i%len(places)], i)
		var tools []mesh.Tool
		for _, verb := range verbs {
			for _, thing := range things {
				own := verb + "_" + strings.ReplaceAll(thing, " ", "_")
				t := tool(id, own, "inputSchema", `{"type":"object","properties":{"id":{"type":"string","description":"the `+thing+`'s id"}}}`)
				t.Description = fmt.Sprintf("[ext:%s] %s%s a %s in the %s system %d.", id, strings.ToUpper(verb[:1]), verb[1:], thing, places[i%len(places)], i)
				tools = append(tools, t)
			}
		}
		out = append(out, extension(id, tools...))
	}
	return out
}

// TestSearchRanking searches for the tools of testdata/search.txt among 10,000 others. Each line there is an extension, a
// tool, its description and a query; the wanted tool must be among the first five for 90 % of the queries.
func TestSearchRanking(t *testing.T) {
	data, err := os.ReadFile("testdata/search.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := generated(10_000)
	byID := map[string][]mesh.Tool{}
	queries := map[string]string{} // wanted tool by query
	for line := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n") {
		f := strings.Split(line, " | ")
		if len(f) < 4 {
			t.Fatalf("malformed line: %s", line)
		}
		tl := tool(f[0], f[1])
		tl.Description = "[ext:" + f[0] + "] " + f[2]
		byID[f[0]] = append(byID[f[0]], tl)
		for _, query := range f[3:] {
			queries[query] = tl.Name
		}
	}
	for id, tools := range byID {
		all = append(all, extension(id, tools...))
	}
	v := viewOf(t, ViewOptions{}, all...)
	if len(v.tools) < 10_000 || len(queries) < 50 {
		t.Fatalf("%d tools, %d queries", len(v.tools), len(queries))
	}
	found := 0
	for query, want := range queries {
		hits, _ := v.find(query, "", 5)
		var names []string
		for _, h := range hits {
			names = append(names, h.name)
		}
		if strings.Contains(" "+strings.Join(names, " ")+" ", " "+want+" ") {
			found++
		} else {
			t.Logf("%q does not find %s: %q", query, want, names)
		}
	}
	t.Logf("%d of %d queries find the wanted tool among the first five", found, len(queries))
	if found*10 < len(queries)*9 {
		t.Error("less than 90 %")
	}
}

func TestSplitWords(t *testing.T) {
	for text, want := range map[string]string{
		"readTextFile": "read text fil", "list_open-issues.v2": "list open issu v2", "HTTPServer": "httpserver", "": "", "Größe 10kg": "größ 10kg",
		"processes process statuses status addresses address": "process process status status address address",
		"focus focused viruses virus":                         "focus focus virus virus",
		"gpus gpu menus menu":                                 "gpu gpu menu menu",
		"repositories repository queries query":               "repositori repositori queri queri",
		"查询天气 API":                                            "查 询 天 气 api", "हिन्दी": "हिन्दी", "café bar": "café bar", strings.Repeat("查", 41): strings.TrimSpace(strings.Repeat("查 ", 41)),
		strings.Repeat("x", 50) + " y": "y", "creating created creates": "creat creat creat",
	} {
		if got := strings.Join(splitWords(text), " "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestSearchMode uses the tools of the search mode.
func TestSearchMode(t *testing.T) {
	b := newBed(t)
	schema := `{"type":"object","properties":{"path":{"type":"string"},"n":{"type":"integer"}},"required":["path"]}`
	b.ready("files", "mcp", tool("files", "read", "annotations", `{"readOnlyHint":true}`, "inputSchema", schema),
		tool("files", "append", "annotations", `{"destructiveHint":false}`), tool("files", "remove"))
	b.ready("other", "ext", tool("other", "x"))
	b.serve("files", func(_ *nats.Msg, _ string, params json.RawMessage) (string, error) {
		return `{"content":[],"isError":true,"echo":` + string(params) + `}`, nil
	})
	p := b.door(Options{View: ViewOptions{Tools: ToolsSearch}}).pipe(t)
	list := p.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	var listed struct {
		Result struct {
			Tools []struct {
				Name        string
				InputSchema map[string]any
				Annotations mcp.Annotations
			}
		}
	}
	if err := json.Unmarshal([]byte(list), &listed); err != nil || len(listed.Result.Tools) != 4 || strings.Contains(list, "ext_files") {
		t.Fatalf("%v: %s", err, list)
	}
	call := func(name, args string) string {
		t.Helper()
		return p.ask(callMessage("1", name, `,"arguments":`+args))
	}
	for _, tt := range []struct{ name, args, want string }{
		{toolSearch, `{"query":""}`, `4 tools of 2 extensions:\nfiles: 3 tools\nother: 1 tools`},
		{toolSearch, `{"query":"read"}`, `1 of 1 matching tools:\n\next_files_read (call it with call_read_tool)\n[ext:files] What read does.\narguments: path: string (required), n: integer`},
		{toolSearch, `{"query":"read"}`, `"input_schema":` + schema},
		{toolSearch, `{"query":"rea"}`, `ext_files_read`},
		{toolSearch, `{"query":"","extension":"files","limit":2}`, `2 of 3 matching tools`},
		{toolSearch, `{"query":"*","extension":"files"}`, `3 of 3 matching tools`},
		{toolSearch, `{"query":"*"}`, `4 tools of 2 extensions`},
		{toolSearch, `{"query":"nothing"}`, `0 of 0 matching tools`},
		{toolSearch, `{"query":7}`, `"isError":true`},
		{toolSearch, `{"query":"x","limit":100}`, `"isError":true`},
		{toolSearch, `{"query":"x","limit":1.5}`, `"isError":true`},
		{toolSearch, `{"query":"read","limit":1.0}`, `ext_files_read`},

		{toolCallRead, `{"name":"ext_files_read","arguments":{"path":"a"}}`, `"echo":{"name":"read","arguments":{"path":"a"}}`},
		{toolCallRead, `{"name":"ext_files_read","arguments":"{\"path\":\"a\"}"}`, `"echo":{"name":"read","arguments":{"path":"a"}}`},
		{toolCall, `{"name":"ext_files_append"}`, `"echo":{"name":"append","arguments":{}}`},
		{toolCallDestructive, `{"name":"ext_files_remove"}`, `"echo":{"name":"remove","arguments":{}}`},
		{toolCall, `{"name":"ext_files_read","arguments":{"path":"a"}}`, `Call ext_files_read with call_read_tool instead of call_tool. ext_files_read was not run.`},
		{toolCallRead, `{"name":"ext_files_remove"}`, `Call ext_files_remove with call_destructive_tool instead of call_read_tool.`},
		{toolCallRead, `{"name":"ext_files_read","arguments":{"n":1}}`, `The schema is {\"type\":\"object\",\"properties\"`},
		{toolCallRead, `{"name":"ext_files_read","arguments":"[]"}`, `arguments must be an object`},
		{toolCallRead, `{"name":"ext_files_raed"}`, `There is no tool ext_files_raed here. Similar names: ext_files_read`},
		{toolCallRead, `{}`, `name must be the name of a tool`},
		{"ext_files_append", `{}`, `"echo":{"name":"append","arguments":{}}`}, // a tool that is not listed can be called by its name
	} {
		if got := call(tt.name, tt.args); !strings.Contains(got, tt.want) {
			t.Errorf("%s %s:\nhave %s\nwant %s", tt.name, tt.args, got, tt.want)
		}
	}
	direct := call("ext_files_append", `{}`)
	if got := call(toolCall, `{"name":"ext_files_append"}`); got != direct {
		t.Errorf("the result differs from that of a direct call:\n%s\n%s", got, direct)
	}
	readOnly := b.door(Options{View: ViewOptions{Tools: ToolsSearch, ReadOnly: true}}).pipe(t)
	if got := readOnly.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); strings.Contains(got, toolCallDestructive) || !strings.Contains(got, toolCallRead) {
		t.Errorf("the read-only list: %s", got)
	}
	if got := readOnly.ask(callMessage("1", toolCallDestructive, `,"arguments":{"name":"ext_files_remove"}`)); strings.Contains(got, `"echo"`) {
		t.Errorf("a read-only server has removed: %s", got)
	}
}

// TestLargeList checks that a list of 10,000 tools is quick and complete.
func TestLargeList(t *testing.T) {
	v := viewOf(t, ViewOptions{Tools: ToolsAll}, generated(10_000)...)
	if len(v.tools) != 10_000 || len(v.legacy.ends) != 10_000 || !json.Valid([]byte("["+string(v.legacy.text)+"]")) {
		t.Errorf("%d tools, %d in the list", len(v.tools), len(v.legacy.ends))
	}
}

// TestSearchDecidedOnce checks that a session that has begun before the catalog was read searches in a large mesh, and
// keeps doing so when the mesh becomes small.
func TestSearchDecidedOnce(t *testing.T) {
	b := newBed(t)
	var tools []mesh.Tool
	for i := range 10 {
		tools = append(tools, tool("x", fmt.Sprintf("t%d", i)))
	}
	b.ready("x", "mcp", tools...)
	d := runDoor(t, Options{View: ViewOptions{SearchOver: 5}})
	p := d.pipe(t)
	hello := func(name string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","clientInfo":{"name":"` + name + `"}}}`
	}
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	p.ask(hello("x"))
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got := p.ask(list); !strings.Contains(got, `"tools":[]`) {
		t.Errorf("the list without a mesh is %s", got)
	}
	b.attach(d)
	natstest.Eventually(t, "the door has read the catalog", d.isReady)
	if got := p.next(); !strings.Contains(got, "notifications/tools/list_changed") {
		t.Errorf("after the mesh has appeared: %s", got)
	}
	if got := p.ask(list); !strings.Contains(got, toolSearch) {
		t.Errorf("the list of a large mesh is %s", got)
	}
	b.ready("x", "mcp", tools[:1]...)
	natstest.Eventually(t, "the mesh is small", func() bool { return !d.view.now.Load().searching })
	if got := p.ask(list); !strings.Contains(got, toolSearch) {
		t.Errorf("the list of the same session becomes %s", got)
	}
	p.ask(hello("x"))
	if got := p.ask(list); !strings.Contains(got, "ext_x_t0") {
		t.Errorf("the list of a new session is %s", got)
	}
}

// TestSearchSize: a result has schemas up to a limit of their size together, and the arguments of the others as text.
func TestSearchSize(t *testing.T) {
	b := newBed(t)
	schema := `{"type":"object","properties":{"path":{"type":"string","description":"` + strings.Repeat("x", 20<<10) + `"}}}`
	var tools []mesh.Tool
	for i := range 10 {
		tools = append(tools, tool("x", fmt.Sprintf("t%d", i), "inputSchema", schema))
	}
	b.ready("x", "mcp", tools...)
	got := b.door(Options{View: ViewOptions{Tools: ToolsSearch}}).pipe(t).ask(callMessage("1", toolSearch, `,"arguments":{"query":"","extension":"x"}`))
	if len(got) > maxHitSchemas+32<<10 || strings.Count(got, `"input_schema":{"type":"object","properties"`) != 3 || strings.Count(got, "arguments: path: string") != 10 {
		t.Errorf("%d bytes: %.3000s", len(got), got)
	}
}

// TestSearchOfGrowingMesh: a session that begins while the mesh starts gets the search tools when there are many tools, and keeps
// them.
func TestSearchOfGrowingMesh(t *testing.T) {
	b := newBed(t)
	var tools []mesh.Tool
	for i := range 10 {
		tools = append(tools, tool("x", fmt.Sprintf("t%d", i)))
	}
	d := b.door(Options{View: ViewOptions{SearchOver: 5}})
	p := d.pipe(t)
	p.ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","clientInfo":{"name":"x"}}}`)
	for _, step := range []struct {
		tools    int
		searches bool
	}{{3, false}, {10, true}, {3, true}} {
		b.ready("x", "mcp", tools[:step.tools]...)
		natstest.Eventually(t, "the view has the tools", func() bool { return len(d.view.now.Load().tools) == step.tools })
		got := p.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		for strings.Contains(got, "list_changed") {
			got = p.next()
		}
		if strings.Contains(got, toolSearch) != step.searches {
			t.Errorf("with %d tools the list is %s", step.tools, got)
		}
	}
}

// TestModernSearch: Claude Code of the modern era searches by itself, and other clients get the search tools.
func TestModernSearch(t *testing.T) {
	b := newBed(t)
	var tools []mesh.Tool
	for i := range 10 {
		tools = append(tools, tool("x", fmt.Sprintf("t%d", i)))
	}
	b.ready("x", "mcp", tools...)
	d := b.door(Options{View: ViewOptions{SearchOver: 5}})
	for name, want := range map[string]string{"claude-code": "ext_x_t0", "other": toolSearch} {
		meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"` + name + `","version":"1"}}`
		p := d.pipe(t)
		if got := p.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}}`); !strings.Contains(got, want) {
			t.Errorf("%s: %s", name, got)
		}
		a := d.web(t, HTTPOptions{}).do("POST", "", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+meta+`}}`, modernHeader("tools/list", ""))
		if !strings.Contains(a.body, want) || !strings.Contains(a.body, `"cacheScope":"private"`) {
			t.Errorf("%s over HTTP: %s", name, a.body)
		}
	}
	// The mesh has shrunk since a client listed the search tools.
	small := b.door(Options{View: ViewOptions{SearchOver: 50}}).pipe(t)
	for name, found := range map[string]string{toolSearch: "ext_x_t0", toolCall: "There is no tool no_such here"} {
		if got := small.ask(callMessage("1", name, `,"arguments":{"query":"t0","name":"no_such"},`+modernMeta)); !strings.Contains(got, found) {
			t.Errorf("%s without search: %s", name, got)
		}
	}
	all := b.door(Options{View: ViewOptions{Tools: ToolsAll}}).pipe(t)
	if got := all.ask(callMessage("1", toolSearch, `,"arguments":{"query":"t0"},`+modernMeta)); !strings.Contains(got, "There is no tool search_tools here") {
		t.Errorf("%s where nothing is ever searched: %s", toolSearch, got)
	}
}

// TestSearchUnlisted checks that a tool that is not listed, so that nothing is known of what it does, is not called with a
// tool that clients may call without asking.
func TestSearchUnlisted(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "task", "execution", `{"taskSupport":"required"}`, "annotations", `{"readOnlyHint":true}`))
	called := make(chan string, 10)
	b.serve("x", func(_ *nats.Msg, method string, _ json.RawMessage) (string, error) {
		called <- method
		return `{"content":[]}`, nil
	})
	p := b.door(Options{View: ViewOptions{Tools: ToolsSearch}}).pipe(t)
	for _, name := range []string{toolCallRead, toolCall} {
		got := p.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `","arguments":{"name":"x/task","arguments":{}}}}`)
		if !strings.Contains(got, "Call x/task with "+toolCallDestructive+" instead of "+name) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if len(called) > 0 {
		t.Error("the tool was called")
	}
	p.want(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+toolCallDestructive+`","arguments":{"name":"x/task"}}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
}
