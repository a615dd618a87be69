package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// tools are the own names of the tools in the catalog, sorted.
func (h *host) tools() (names []string) {
	if e := h.entry(); e.Spec != nil {
		for _, t := range e.Spec.Tools {
			names = append(names, t.Own)
		}
	}
	slices.Sort(names)
	return names
}

// offers waits until the catalog has exactly these tools.
func (h *host) offers(names ...string) {
	h.Helper()
	slices.Sort(names)
	for deadline := time.Now().Add(time.Minute); !slices.Equal(h.tools(), names); nap(h.Context(), 2*time.Millisecond) {
		if time.Now().After(deadline) {
			h.Fatalf("the catalog has the tools %q, want %q", h.tools(), names)
		}
	}
}

// warns waits until the catalog has a diagnostic with this code and text.
func (h *host) warns(code, text string) {
	h.Helper()
	h.eventually(fmt.Sprintf("the catalog has a diagnostic %s: %s", code, text), func() bool {
		e := h.entry()
		return e.Spec != nil && slices.ContainsFunc(e.Spec.Diagnostics, func(d mesh.Diagnostic) bool {
			return d.Code == code && strings.Contains(d.Message, text)
		})
	})
	if !slices.ContainsFunc(h.status().Problems, func(d mesh.Diagnostic) bool { return d.Code == code }) {
		h.Errorf("the control status does not say %s: %+v", code, h.status().Problems)
	}
}

// dialectFaults are children that speak a dialect as one may, or may not.
var dialectFaults = []fault{
	{
		mode: "storm-of-list-changed", does: "changes its tools and says so 1,000 times",
		caller: "the new tool, by name", operator: "the new tool in the catalog, at once",
		bridge: "reads the list again once or twice, announces once",
		mcp:    true,
		tools:  []string{"act", "asked"},
		kid: func(k *kid) {
			asked, names := 0, []string{"echo", "act", "asked"}
			k.serve(map[string]func(message){
				"tools/list": func(m message) { asked++; k.result(m, `{"tools":`+toolList(true, names...)+`}`) },
				"asked":      func(m message) { k.result(m, fmt.Sprint(asked)) },
				"act": func(m message) {
					names = append(names, "new")
					k.say(strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`+"\n", 1000))
					k.result(m, "true")
				},
				"new": func(m message) { k.result(m, `"new"`) },
			})
		},
		test: func(h *host) {
			h.ready()
			if _, err := h.call("act", "{}"); err != nil {
				h.Fatal(err)
			}
			h.offers("echo", "act", "asked", "new")
			if got, err := h.call("new", "{}"); err != nil || got != `"new"` {
				h.Errorf("the new tool: %s, %v", got, err)
			}
			nap(h.Context(), 700*time.Millisecond) // in which it must not be asked again
			if got, _ := h.call("asked", "{}"); got != "2" && got != "3" {
				h.Errorf("it was asked for its tools %s times", got)
			}
		},
	},
	{
		mode: "other-tools-after-restart", does: "has other tools in its next life",
		caller: "the new tools; `unknown tool` with the nearest names for old ones", operator: "the new tools in the catalog",
		bridge: "shakes hands anew in every life, announces",
		kid: func(k *kid) {
			name := fmt.Sprintf("tool%d", life())
			k.offer = func() string { return toolList(false, name) }
			k.serve(only(name, func(m message) { k.result(m, "true") }))
		},
		test: func(h *host) {
			h.offers("tool1")
			h.restart()
			h.offers("tool2")
			if got, err := h.call("tool2", "{}"); err != nil || got != "true" {
				h.Errorf("the new tool: %s, %v", got, err)
			}
			if _, err := h.call("tool1", "{}"); err == nil || !strings.Contains(err.Error(), "tool2") {
				h.Errorf("the old tool: %v", err)
			}
		},
	},
	{
		mode: "paged-tools", does: "lists its tools page by page, one cursor empty",
		caller: "all tools", operator: "all tools", bridge: "reads all pages",
		mcp: true,
		kid: func(k *kid) {
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
		test: func(h *host) { h.offers("a", "b", "c") },
	},
	{
		mode: "older-mcp", does: "is an MCP server of 2024-11-05 (2025-03-26, 2025-06-18), whatever version it is asked for",
		caller: "its answers", operator: "nothing", bridge: "takes any version that has a handshake, and says in `initialize` which it is",
		mcp: true,
		kid: func(k *kid) {
			version := olderVersions[(life()-1)%len(olderVersions)]
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
					h.ready()
					m, err := h.w.nc.Request("ext."+h.id+".rpc", []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`), time.Minute)
					return err == nil && strings.Contains(string(m.Data), `"protocolVersion":"`+version+`"`)
				})
				h.good()
			}
			if e := h.entry(); e.Spec.Dialect != "mcp" {
				h.Errorf("its dialect is %q", e.Spec.Dialect)
			}
		},
	},
	{
		mode: "looping-cursor", does: "lists its tools with a cursor that leads round in a circle",
		caller: "the tools, each once", operator: "the diagnostic `endless_list`", bridge: "stops at the first cursor that it has seen",
		mcp: true,
		kid: func(k *kid) {
			next := map[string]string{"": "x", "x": "y", "y": "x"}
			k.serve(only("tools/list", func(m message) {
				var p struct{ Cursor string }
				json.Unmarshal(m.Params, &p)
				k.result(m, `{"tools":`+toolList(true, "echo", "after-"+p.Cursor)+`,"nextCursor":"`+next[p.Cursor]+`"}`)
			}))
		},
		test: func(h *host) {
			h.offers("echo", "after-", "after-x", "after-y")
			h.warns("endless_list", "points back")
			h.good()
		},
	},
	{
		mode: "undeclared-tools", does: "serves another tool than its manifest declares",
		caller: "what it serves", operator: "diagnostics `undeclared`, for either", bridge: "nothing more",
		tools: []string{"declared"},
		kid: func(k *kid) {
			k.offer = func() string { return toolList(false, "echo", "served") }
			k.serve(nil)
		},
		test: func(h *host) {
			h.offers("echo", "served")
			h.warns("undeclared", `serves the tool "served", which its manifest does not declare`)
			h.warns("undeclared", `declares the tool "declared", which the extension does not serve`)
			h.good()
		},
	},
	{
		mode: "bad-tools", does: "lists tools without a name, twice, with a schema that is none",
		caller: "the good ones", operator: "a diagnostic `bad_tool` for each", bridge: "leaves out what cannot be called",
		kid: func(k *kid) {
			k.offer = func() string {
				return `[{"name":"echo","input_schema":{"type":"object"}},{"description":"nameless"},{"name":"echo"},7,{"name":"odd","input_schema":"none"}]`
			}
			k.serve(nil)
		},
		test: func(h *host) {
			h.offers("echo", "odd")
			h.warns("bad_tool", "it has no name")
			h.warns("bad_tool", `a second tool named "echo"`)
			h.warns("bad_tool", "its input schema is not an object")
			h.good()
		},
	},
	{
		mode: "tools-call-only", does: "is native, and takes only `tools/call`: -32601 to `tools/<name>`",
		caller: "`method_not_found`, its own", operator: "nothing", bridge: "passes it on: it may be the error of a tool that has run. Such a program has to answer `initialize` as an MCP server",
		kid: func(k *kid) {
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
			h.ready()
			_, err := h.call("echo", "{}")
			if e := rpc.AsError(err); e.Code != rpc.CodeMethodNotFound || e.Message != "no such method" {
				h.Errorf("it came as %+v", e)
			}
		},
	},
	{
		mode: "tools-named-list-and-call", does: "is native, and has tools named `list` and `call`",
		caller: "their answers, in either form of a call through `mesh.Client` or `tools/call`", operator: "nothing",
		bridge: "asks for these two with `tools/call`: the short forms are methods of their own",
		tools:  []string{"list", "call"},
		kid: func(k *kid) {
			tell := func(m message) { k.result(m, `"`+m.Method+`"`) }
			k.serve(map[string]func(message){"list": tell, "call": tell})
		},
		test: func(h *host) {
			h.offers("echo", "list", "call")
			for _, tool := range []string{"list", "call"} {
				if got, err := h.call(tool, "{}"); err != nil || got != `"tools/call"` {
					h.Errorf("%s answered %s, %v", tool, got, err)
				}
				if got, err := h.ask("tools/call", `{"name":"`+tool+`","arguments":{}}`); err != nil || string(got) != `"tools/call"` {
					h.Errorf("asked by hand, %s answered %s, %v", tool, got, err)
				}
			}
			h.good()
		},
	},
	{
		mode: "unknown-method", does: "has a tool that runs, and answers -32601 of its own",
		caller: "`method_not_found`, its own", operator: "nothing", bridge: "passes it on, and runs the tool once",
		tools: []string{"act"},
		kid:   actsOnce,
		test:  runsOnce,
	},
	{
		mode: "unlisted-tool", does: "is called by a name that it does not list",
		caller: "`method_not_found` (`ran: no`)", operator: "nothing", bridge: "refuses the call without asking it",
		kid: actsOnce,
		test: func(h *host) {
			h.ready()
			for method, params := range map[string]string{"tools/act": "{}", "tools/call": `{"name":"act"}`} {
				_, err := h.ask(method, params)
				h.fails(err, rpc.CodeMethodNotFound, rpc.RanNo, "no tool named \"act\"")
			}
			h.good()
			if h.events("ran") != 0 {
				h.Error("it was run")
			}
		},
	},
	{
		mode: "unknown-method-mcp", does: "is an MCP server that has a tool that runs, and answers -32601 of its own",
		caller: "`method_not_found`, its own", operator: "nothing", bridge: "passes it on, and runs the tool once",
		mcp:   true,
		tools: []string{"act"},
		kid:   actsOnce,
		test:  runsOnce,
	},
	{
		mode: "unlisted-tool-mcp", does: "is an MCP server that is called by a name that it does not list",
		caller: "`method_not_found` (`ran: no`)", operator: "nothing", bridge: "refuses the call without asking it",
		mcp: true,
		kid: actsOnce,
		test: func(h *host) {
			h.ready()
			for method, params := range map[string]string{"tools/act": "{}", "tools/call": `{"name":"act"}`} {
				_, err := h.ask(method, params)
				h.fails(err, rpc.CodeMethodNotFound, rpc.RanNo, "no tool named \"act\"")
			}
			h.good()
			if h.events("ran") != 0 {
				h.Error("it was run")
			}
		},
	},
	{
		mode: "exact-bytes", does: "sends numbers, keys and content that decoders spoil",
		caller: "every byte as it was", operator: "nothing", bridge: "exchanges the id and nothing else",
		mcp:   true,
		tools: []string{"act"},
		kid:   func(k *kid) { k.serve(only("act", func(m message) { k.result(m, exact) })) },
		test: func(h *host) {
			answers(exact)(h)
			_, err := h.call("echo", exact)
			if err != nil {
				h.Error(err)
			}
			if got, err := h.call("echo", exact); err != nil || got != exact {
				h.Errorf("the arguments came as %s, %v", got, err)
			}
		},
	},
	{
		mode: "context-native", does: "wants to know who calls (`context.passthrough`), native",
		caller: "nothing", operator: "nothing", bridge: "sets `_meta` in the arguments, and touches no other byte",
		more: "[context]\npassthrough = true\n",
		kid:  func(k *kid) { k.serve(nil) },
		test: func(h *host) {
			h.ready()
			const args = `{"n":9007199254740993, "x":1.0}`
			for method, params := range map[string]string{"tools/echo": args, "tools/call": `{"name":"echo","arguments":` + args + `}`} {
				got, err := h.ask(method, params, "Ext-Agent", "support-bot", "Ext-Session", "5f0c")
				if rest, ok := without(string(got), `"_meta":{"agent_id":"support-bot","session_id":"5f0c"}`); err != nil || !ok || rest != args {
					h.Errorf("%s: it was sent %s, %v", method, got, err)
				}
			}
			got, err := h.ask("tools/echo", `{"_meta":{"mine":1},"n":1}`)
			if err != nil || string(got) != `{"_meta":{"mine":1},"n":1}` {
				h.Errorf("nobody said who calls, and it was sent %s, %v", got, err)
			}
		},
	},
	{
		mode: "context-mcp", does: "wants to know who calls (`context.passthrough`), MCP",
		caller: "nothing", operator: "nothing", bridge: "sets the two keys in `params._meta`, and leaves the others",
		more:  "[context]\npassthrough = true\n",
		mcp:   true,
		tools: []string{"params"},
		kid:   func(k *kid) { k.serve(only("params", func(m message) { k.result(m, string(m.Params)) })) },
		test: func(h *host) {
			h.ready()
			got, err := h.ask("tools/call", `{"name":"params","arguments":{"n":1e400},"_meta":{"vendor/x":[1.0]}}`, "Ext-Agent", "support-bot")
			rest, agent := without(string(got), `"agent_id":"support-bot"`)
			rest, session := without(rest, `"session_id":""`)
			if err != nil || !agent || !session || rest != `{"name":"params","arguments":{"n":1e400},"_meta":{"vendor/x":[1.0]}}` {
				h.Errorf("it was sent %s, %v", got, err)
			}
			got, err = h.ask("tools/params", `{"n":1e400}`, "Ext-Agent", "support-bot", "Ext-Session", "5f0c")
			rest, ok := without(string(got), `"_meta":{"agent_id":"support-bot","session_id":"5f0c"}`)
			if err != nil || !ok || rest != `{"name":"params","arguments":{"n":1e400}}` {
				h.Errorf("in the short form it was sent %s, %v", got, err)
			}
		},
	},
	{
		mode: "more-than-tools", does: "is an MCP server with resources and prompts",
		caller: "their answers as they are", operator: "nothing", bridge: "passes such requests through; those about one client's session are -32601",
		mcp: true,
		kid: func(k *kid) {
			k.serve(map[string]func(message){
				"resources/read":   func(m message) { k.result(m, string(m.Params)) },
				"prompts/list":     func(m message) { k.result(m, `{"prompts":[1.0]}`) },
				"logging/setLevel": func(m message) { k.result(m, `{}`) },
			})
		},
		test: func(h *host) {
			h.ready()
			if got, err := h.ask("resources/read", `{"uri":"x://1", "n":1.0}`); err != nil || string(got) != `{"uri":"x://1", "n":1.0}` {
				h.Errorf("resources/read: %s, %v", got, err)
			}
			if got, err := h.ask("prompts/list", `{}`); err != nil || string(got) != `{"prompts":[1.0]}` {
				h.Errorf("prompts/list: %s, %v", got, err)
			}
			for _, method := range []string{"logging/setLevel", "resources/subscribe", "shutdown", "notifications/initialized"} {
				if _, err := h.ask(method, `{}`); rpc.AsError(err).Code != rpc.CodeMethodNotFound {
					h.Errorf("%s: %v", method, err)
				}
			}
		},
	},
}

// actsOnce is a kid whose tool act reports that it ran and answers that there is no such method.
func actsOnce(k *kid) {
	k.serve(only("act", func(m message) {
		k.notify("ran", "{}")
		k.fail(m, -32601, "its own words")
	}))
}

// runsOnce calls act in each way that there is, and counts its runs.
func runsOnce(h *host) {
	h.ready()
	for n, call := range []func() error{
		func() error { _, err := h.call("act", "{}"); return err },
		func() error { _, err := h.ask("tools/act", "{}"); return err },
		func() error { _, err := h.ask("tools/call", `{"name":"act","arguments":{}}`); return err },
	} {
		if e := rpc.AsError(call()); e == nil || e.Code != rpc.CodeMethodNotFound || e.Message != "its own words" || e.Data != nil {
			h.Errorf("it came as %+v", e)
		}
		h.good() // sent after any second run
		h.eventually("it ran", func() bool { return h.events("ran") > n })
		if runs := h.events("ran"); runs != n+1 {
			h.Errorf("%d calls were run %d times", n+1, runs)
		}
	}
}

// olderVersions are MCP's before the one that the bridge asks for.
var olderVersions = []string{"2024-11-05", "2025-03-26", "2025-06-18"}

// exact is a result that says at once who has touched it.
const exact = `{"z":9007199254740993,"a":1e400, "one":1.0,"content":[{"type":"x-unknown","<&>":"\u00e9\/"}],"empty":{ },"structuredContent":[-0.0]}`

// without takes a member out of an object, wherever it stands.
func without(object, member string) (rest string, ok bool) {
	for _, form := range []string{"," + member, member + ",", member} {
		if before, after, found := strings.Cut(object, form); found {
			return before + after, true
		}
	}
	return object, false
}
