package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// tools returns the sorted local names of the tools in the catalog.
func (h *host) tools() (names []string) {
	if e := h.entry(); e.Spec != nil {
		for _, t := range e.Spec.Tools {
			names = append(names, t.Own)
		}
	}
	slices.Sort(names)
	return names
}

// waitForTools waits until the catalog has exactly these tools.
func (h *host) waitForTools(names ...string) {
	h.Helper()
	slices.Sort(names)
	for deadline := time.Now().Add(time.Minute); !slices.Equal(h.tools(), names); sleep(h.Context(), 2*time.Millisecond) {
		if time.Now().After(deadline) {
			h.Fatalf("the catalog has the tools %q, want %q", h.tools(), names)
		}
	}
}

// waitForDiagnostic waits until the catalog has a diagnostic with this code and text.
func (h *host) waitForDiagnostic(code, text string) {
	h.Helper()
	h.eventually(fmt.Sprintf("the catalog has a diagnostic %s: %s", code, text), func() bool {
		e := h.entry()
		return e.Spec != nil && slices.ContainsFunc(e.Spec.Diagnostics, func(d wire.Diagnostic) bool {
			return d.Code == code && strings.Contains(d.Message, text)
		})
	})
	if !slices.ContainsFunc(h.status().Problems, func(d wire.Diagnostic) bool { return d.Code == code }) {
		h.Errorf("the control status lacks %s: %+v", code, h.status().Problems)
	}
}

// dialectFaults are unusual or wrong uses of the native dialect and of MCP.
var dialectFaults = []fault{
	{
		mode: "storm-of-list-changed", does: "changes its tools and sends 1,000 `notifications/tools/list_changed`",
		caller: "the new tool, by name", operator: "the new tool in the catalog, at once",
		bridge: "reads the list again once or twice, and announces once",
		mcp:    true,
		tools:  []string{"act", "lists"},
		child: func(k *testChild) {
			lists, names := 0, []string{"echo", "act", "lists"}
			k.serve(map[string]func(message){
				"tools/list": func(m message) { lists++; k.result(m, `{"tools":`+toolList(true, names...)+`}`) },
				"lists":      func(m message) { k.result(m, fmt.Sprint(lists)) },
				"act": func(m message) {
					names = append(names, "new")
					k.write(strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`+"\n", 1000))
					k.result(m, "true")
				},
				"new": func(m message) { k.result(m, `"new"`) },
			})
		},
		test: func(h *host) {
			h.waitReady()
			if _, err := h.call("act", "{}"); err != nil {
				h.Fatal(err)
			}
			h.waitForTools("echo", "act", "lists", "new")
			if got, err := h.call("new", "{}"); err != nil || got != `"new"` {
				h.Errorf("the new tool: %s, %v", got, err)
			}
			sleep(h.Context(), 700*time.Millisecond) // there must be no further tools/list meanwhile
			if got, _ := h.call("lists", "{}"); got != "2" && got != "3" {
				h.Errorf("the bridge requested the tools %s times", got)
			}
		},
	},
	{
		mode: "other-tools-after-restart", does: "has other tools after a restart",
		caller: "the new tools; `unknown tool` with similar names for old ones", operator: "the new tools in the catalog",
		bridge: "makes a new handshake after every start, and announces the result",
		child: func(k *testChild) {
			name := fmt.Sprintf("tool%d", runNumber())
			k.offer = func() string { return toolList(false, name) }
			k.serve(only(name, func(m message) { k.result(m, "true") }))
		},
		test: func(h *host) {
			h.waitForTools("tool1")
			h.restart()
			h.waitForTools("tool2")
			if got, err := h.call("tool2", "{}"); err != nil || got != "true" {
				h.Errorf("the new tool: %s, %v", got, err)
			}
			if _, err := h.call("tool1", "{}"); err == nil || !strings.Contains(err.Error(), "tool2") {
				h.Errorf("the old tool: %v", err)
			}
		},
	},
	{
		mode: "paged-tools", does: "lists its tools in pages, one with an empty cursor",
		caller: "all tools", operator: "all tools", bridge: "reads all pages",
		mcp: true,
		child: func(k *testChild) {
			pages := map[string]string{ // cursor → page
				"":   `{"tools":` + toolList(true, "a") + `,"nextCursor":"2"}`,
				`2`:  `{"tools":` + toolList(true, "b") + `,"nextCursor":""}`,
				`""`: `{"tools":` + toolList(true, "c") + `}`,
			}
			k.serve(only("tools/list", func(m message) {
				var p struct{ Cursor *string }
				json.Unmarshal(m.Params, &p)
				switch {
				case p.Cursor == nil:
					k.result(m, pages[""])
				case *p.Cursor == "":
					k.result(m, pages[`""`])
				default:
					k.result(m, pages[*p.Cursor])
				}
			}))
		},
		test: func(h *host) { h.waitForTools("a", "b", "c") },
	},
	{
		mode: "older-mcp", does: "is an MCP server of 2024-11-05 (2025-03-26, 2025-06-18), whatever version the bridge requests",
		caller: "its answers", operator: "nothing", bridge: "accepts any version that has a handshake, and reports it in `initialize`",
		mcp: true,
		child: func(k *testChild) {
			version := olderVersions[(runNumber()-1)%len(olderVersions)]
			k.serve(only("initialize", func(m message) {
				k.result(m, `{"protocolVersion":"`+version+`","capabilities":{"tools":{}},"serverInfo":{"name":"old","version":"1"}}`)
			}))
		},
		test: func(h *host) {
			for n, version := range olderVersions {
				if n > 0 {
					h.restart()
				}
				h.eventually("it answers as "+version, func() bool {
					h.waitReady()
					m, err := h.w.nc.Request("ext."+h.id+".rpc", []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`), time.Minute)
					return err == nil && strings.Contains(string(m.Data), `"protocolVersion":"`+version+`"`)
				})
				h.callSucceeds()
			}
			if e := h.entry(); e.Spec.Dialect != "mcp" {
				h.Errorf("its dialect is %q", e.Spec.Dialect)
			}
		},
	},
	{
		mode: "looping-cursor", does: "lists its tools with cursors that form a loop",
		caller: "the tools, each once", operator: "the diagnostic `endless_list`", bridge: "stops at the first cursor that repeats",
		mcp: true,
		child: func(k *testChild) {
			next := map[string]string{"": "x", "x": "y", "y": "x"}
			k.serve(only("tools/list", func(m message) {
				var p struct{ Cursor string }
				json.Unmarshal(m.Params, &p)
				k.result(m, `{"tools":`+toolList(true, "echo", "after-"+p.Cursor)+`,"nextCursor":"`+next[p.Cursor]+`"}`)
			}))
		},
		test: func(h *host) {
			h.waitForTools("echo", "after-", "after-x", "after-y")
			h.waitForDiagnostic("endless_list", "the pages do not end")
			h.callSucceeds()
		},
	},
	{
		mode: "undeclared-tools", does: "serves a different tool than its manifest declares",
		caller: "the tool that is served", operator: "two diagnostics `undeclared`: one for the tool that is not declared, one for the tool that is not served", bridge: "reports the diagnostics, and serves what there is",
		tools: []string{"declared"},
		child: func(k *testChild) {
			k.offer = func() string { return toolList(false, "echo", "served") }
			k.serve(nil)
		},
		test: func(h *host) {
			h.waitForTools("echo", "served")
			h.waitForDiagnostic("undeclared", `serves the tool "served", which its manifest does not declare`)
			h.waitForDiagnostic("undeclared", `declares the tool "declared", which the extension does not serve`)
			h.callSucceeds()
		},
	},
	{
		mode: "bad-tools", does: "lists a tool without a name, one twice, and one with an invalid schema",
		caller: "the valid tools", operator: "a diagnostic `bad_tool` for each", bridge: "omits tools that cannot be called",
		child: func(k *testChild) {
			k.offer = func() string {
				return `[{"name":"echo","input_schema":{"type":"object"}},{"description":"nameless"},{"name":"echo"},7,{"name":"odd","input_schema":"none"}]`
			}
			k.serve(nil)
		},
		test: func(h *host) {
			h.waitForTools("echo", "odd")
			h.waitForDiagnostic("bad_tool", "it has no name")
			h.waitForDiagnostic("bad_tool", `a second tool named "echo"`)
			h.waitForDiagnostic("bad_tool", "its input schema is not an object")
			h.callSucceeds()
		},
	},
	{
		mode: "tools-call-only", does: "uses the native dialect, but accepts only `tools/call`, and answers `tools/<name>` with -32601",
		caller: "`method_not_found`, the extension's own", operator: "nothing", bridge: "passes the error on: it could come from a tool that has run. Such a program must answer `initialize` as an MCP server",
		child: func(k *testChild) {
			for {
				m, ok := k.next()
				if !ok {
					return
				}
				if name, _ := m.tool(); name == "" || m.Method == "tools/call" {
					k.handle(m, nil)
				} else {
					k.fail(m, -32601, "no such method")
				}
			}
		},
		test: func(h *host) {
			h.waitReady()
			_, err := h.call("echo", "{}")
			if e := rpc.AsError(err); e.Code != rpc.CodeMethodNotFound || e.Message != "no such method" {
				h.Errorf("the error is %+v", e)
			}
		},
	},
	{
		mode: "tools-named-list-and-call", does: "uses the native dialect and has tools named `list` and `call`",
		caller: "their answers, with `mesh.Client` and with a plain `tools/call`", operator: "nothing",
		bridge: "calls these two tools with `tools/call`: `tools/list` is another method",
		tools:  []string{"list", "call"},
		child: func(k *testChild) {
			method := func(m message) { k.result(m, `"`+m.Method+`"`) }
			k.serve(map[string]func(message){"list": method, "call": method})
		},
		test: func(h *host) {
			h.waitForTools("echo", "list", "call")
			for _, tool := range []string{"list", "call"} {
				if got, err := h.call(tool, "{}"); err != nil || got != `"tools/call"` {
					h.Errorf("the answer of %s is %s, %v", tool, got, err)
				}
				if got, err := h.request("tools/call", `{"name":"`+tool+`","arguments":{}}`); err != nil || string(got) != `"tools/call"` {
					h.Errorf("the answer of %s to a plain request is %s, %v", tool, got, err)
				}
			}
			h.callSucceeds()
		},
	},
	{
		mode: "unknown-method", does: "has a tool that runs and then answers with -32601",
		caller: "`method_not_found`, the extension's own", operator: "nothing", bridge: "passes the error on, and does not repeat the call",
		tools: []string{"act"},
		child: countsRuns,
		test:  checkRanOnce,
	},
	{
		mode: "unlisted-tool", does: "is called with the name of a tool that it does not list",
		caller: "`method_not_found` (`ran: no`)", operator: "nothing", bridge: "refuses the call without sending it to the child",
		child: countsRuns,
		test: func(h *host) {
			h.waitReady()
			for method, params := range map[string]string{"tools/act": "{}", "tools/call": `{"name":"act"}`} {
				_, err := h.request(method, params)
				h.wantError(err, rpc.CodeMethodNotFound, rpc.RanNo, "no tool named \"act\"")
			}
			h.callSucceeds()
			if h.events("ran") != 0 {
				h.Error("it was run")
			}
		},
	},
	{
		mode: "unknown-method-mcp", does: "is an MCP server with a tool that runs and then answers with -32601",
		caller: "`method_not_found`, the extension's own", operator: "nothing", bridge: "passes the error on, and does not repeat the call",
		mcp:   true,
		tools: []string{"act"},
		child: countsRuns,
		test:  checkRanOnce,
	},
	{
		mode: "unlisted-tool-mcp", does: "is an MCP server that is called with the name of a tool that it does not list",
		caller: "`method_not_found` (`ran: no`)", operator: "nothing", bridge: "refuses the call without sending it to the child",
		mcp:   true,
		child: countsRuns,
		test: func(h *host) {
			h.waitReady()
			for method, params := range map[string]string{"tools/act": "{}", "tools/call": `{"name":"act"}`} {
				_, err := h.request(method, params)
				h.wantError(err, rpc.CodeMethodNotFound, rpc.RanNo, "no tool named \"act\"")
			}
			h.callSucceeds()
			if h.events("ran") != 0 {
				h.Error("it was run")
			}
		},
	},
	{
		mode: "exact-bytes", does: "sends numbers, keys and content that decoding and encoding would change",
		caller: "every byte unchanged", operator: "nothing", bridge: "replaces the id and nothing else",
		mcp:   true,
		tools: []string{"act"},
		child: func(k *testChild) { k.serve(only("act", func(m message) { k.result(m, exact) })) },
		test: func(h *host) {
			answers(exact)(h)
			_, err := h.call("echo", exact)
			if err != nil {
				h.Error(err)
			}
			if got, err := h.call("echo", exact); err != nil || got != exact {
				h.Errorf("the child received the arguments %s, %v", got, err)
			}
		},
	},
	{
		mode: "context-native", does: "requests the caller's identity (`context.passthrough`), native dialect",
		caller: "nothing", operator: "nothing", bridge: "sets `_meta` in the arguments, and changes no other byte",
		more:  "[context]\npassthrough = true\n",
		child: func(k *testChild) { k.serve(nil) },
		test: func(h *host) {
			h.waitReady()
			const args = `{"n":9007199254740993, "x":1.0}`
			for method, params := range map[string]string{"tools/echo": args, "tools/call": `{"name":"echo","arguments":` + args + `}`} {
				got, err := h.request(method, params, "Ext-Agent", "support-bot", "Ext-Session", "5f0c")
				if rest, ok := without(string(got), `"_meta":{"agent_id":"support-bot","session_id":"5f0c"}`); err != nil || !ok || rest != args {
					h.Errorf("%s: the child received %s, %v", method, got, err)
				}
			}
			got, err := h.request("tools/echo", `{"_meta":{"mine":1},"n":1}`)
			if err != nil || string(got) != `{"_meta":{"mine":1},"n":1}` {
				h.Errorf("a call without an identity: the child received %s, %v", got, err)
			}
		},
	},
	{
		mode: "context-mcp", does: "requests the caller's identity (`context.passthrough`), MCP",
		caller: "nothing", operator: "nothing", bridge: "sets two keys in `params._meta`, and keeps the others",
		more:  "[context]\npassthrough = true\n",
		mcp:   true,
		tools: []string{"params"},
		child: func(k *testChild) { k.serve(only("params", func(m message) { k.result(m, string(m.Params)) })) },
		test: func(h *host) {
			h.waitReady()
			got, err := h.request("tools/call", `{"name":"params","arguments":{"n":1e400},"_meta":{"vendor/x":[1.0]}}`, "Ext-Agent", "support-bot")
			rest, agent := without(string(got), `"agent_id":"support-bot"`)
			rest, session := without(rest, `"session_id":""`)
			if err != nil || !agent || !session || rest != `{"name":"params","arguments":{"n":1e400},"_meta":{"vendor/x":[1.0]}}` {
				h.Errorf("the child received %s, %v", got, err)
			}
			got, err = h.request("tools/params", `{"n":1e400}`, "Ext-Agent", "support-bot", "Ext-Session", "5f0c")
			rest, ok := without(string(got), `"_meta":{"agent_id":"support-bot","session_id":"5f0c"}`)
			if err != nil || !ok || rest != `{"name":"params","arguments":{"n":1e400}}` {
				h.Errorf("in the short form the child received %s, %v", got, err)
			}
		},
	},
	{
		mode: "more-than-tools", does: "is an MCP server with resources and prompts",
		caller: "its answers, unchanged", operator: "nothing", bridge: "passes these requests on; answers those that concern a client's session with -32601",
		mcp: true,
		child: func(k *testChild) {
			k.serve(map[string]func(message){
				"resources/read":   func(m message) { k.result(m, string(m.Params)) },
				"prompts/list":     func(m message) { k.result(m, `{"prompts":[1.0]}`) },
				"logging/setLevel": func(m message) { k.result(m, `{}`) },
			})
		},
		test: func(h *host) {
			h.waitReady()
			if got, err := h.request("resources/read", `{"uri":"x://1", "n":1.0}`); err != nil || string(got) != `{"uri":"x://1", "n":1.0}` {
				h.Errorf("resources/read: %s, %v", got, err)
			}
			if got, err := h.request("prompts/list", `{}`); err != nil || string(got) != `{"prompts":[1.0]}` {
				h.Errorf("prompts/list: %s, %v", got, err)
			}
			for _, method := range []string{"logging/setLevel", "resources/subscribe", "shutdown", "notifications/initialized"} {
				if _, err := h.request(method, `{}`); rpc.AsError(err).Code != rpc.CodeMethodNotFound {
					h.Errorf("%s: %v", method, err)
				}
			}
		},
	},
}

// countsRuns is a child with the tool act, which sends a notification that it ran, and then the error -32601.
func countsRuns(k *testChild) {
	k.serve(only("act", func(m message) {
		k.notify("ran", "{}")
		k.fail(m, -32601, "its own words")
	}))
}

// checkRanOnce calls act in each of the three possible ways, and counts its runs.
func checkRanOnce(h *host) {
	h.waitReady()
	for n, call := range []func() error{
		func() error { _, err := h.call("act", "{}"); return err },
		func() error { _, err := h.request("tools/act", "{}"); return err },
		func() error { _, err := h.request("tools/call", `{"name":"act","arguments":{}}`); return err },
	} {
		if e := rpc.AsError(call()); e == nil || e.Code != rpc.CodeMethodNotFound || e.Message != "its own words" || e.Data != nil {
			h.Errorf("the error is %+v", e)
		}
		h.callSucceeds() // a second run would come before this call
		h.eventually("it ran", func() bool { return h.events("ran") > n })
		if runs := h.events("ran"); runs != n+1 {
			h.Errorf("%d calls ran %d times", n+1, runs)
		}
	}
}

// olderVersions are the MCP versions before the one that the bridge requests.
var olderVersions = []string{"2024-11-05", "2025-03-26", "2025-06-18"}

// exact is a result that any decoding and encoding changes.
const exact = `{"z":9007199254740993,"a":1e400, "one":1.0,"content":[{"type":"x-unknown","<&>":"\u00e9\/"}],"empty":{ },"structuredContent":[-0.0]}`

// without removes a member from an object, at any position.
func without(object, member string) (rest string, ok bool) {
	for _, form := range []string{"," + member, member + ",", member} {
		if before, after, found := strings.Cut(object, form); found {
			return before + after, true
		}
	}
	return object, false
}
