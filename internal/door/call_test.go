package door

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// callMessage is a tools/call. more are further members of params.
func callMessage(id, name, more string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + name + `"` + more + `}}`
}

const exact = `{"big":9007199254740993,"huge":1e400,"one":1.0, "esc":"\u00e9\/<&>","unknown":[{"b":1,"a":2}],"b":1,"a":-0}`

// TestBytes checks that arguments, results and foreign members of _meta pass unchanged, in both eras.
func TestBytes(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "echo"))
	var got string
	b.serve("x", func(_ *nats.Msg, method string, params json.RawMessage) (string, error) {
		got = method + " " + string(params)
		return `{"content":[{"type":"future","x":1e400}],"structuredContent":` + exact + `, "_meta":{"v/x":1.0}}`, nil
	})
	p := b.door(Options{}).pipe(t)
	result := `"content":[{"type":"future","x":1e400}],"structuredContent":` + exact + `, "_meta":{"v/x":1.0}}}`
	p.want(callMessage("9007199254740993", "ext_x_echo", `,"unknown":1,"arguments":`+exact+`,"_meta":{"progressToken":"t","v/x":1e400,"io.modelcontextprotocol/x":1,"traceparent":"tp"}`),
		`{"jsonrpc":"2.0","id":9007199254740993,"result":{`+result)
	if want := `tools/call {"name":"echo","arguments":` + exact + `,"_meta":{"v/x":1e400,"traceparent":"tp","progressToken":1}}`; got != want {
		t.Errorf("the extension has received\n%s\nwant\n%s", got, want)
	}
	p.want(callMessage(`"m"`, "ext_x_echo", `,"arguments":`+exact+`,`+modernMeta), `{"jsonrpc":"2.0","id":"m","result":{"resultType":"complete",`+result)
	if want := `tools/call {"name":"echo","arguments":` + exact + `}`; got != want {
		t.Errorf("the extension has received\n%s\nwant\n%s", got, want)
	}
}

// TestResults checks how results of native extensions become MCP results, and that an answer over several lines stays
// one message.
func TestResults(t *testing.T) {
	b := newBed(t)
	b.ready("native", "ext", tool("native", "give"))
	b.ready("mcp", "mcp", tool("mcp", "give"))
	b.serve("native", func(_ *nats.Msg, _ string, params json.RawMessage) (string, error) { return unpack(t, params), nil })
	b.serve("mcp", func(_ *nats.Msg, _ string, params json.RawMessage) (string, error) {
		var call struct{ Arguments json.RawMessage }
		if err := json.Unmarshal(params, &call); err != nil {
			t.Error(err)
		}
		return unpack(t, call.Arguments), nil
	})
	p := b.door(Options{MaxResult: 2000}).pipe(t)
	for _, tt := range []struct{ name, give, legacy, modern string }{
		{"native", `{"n":1.0}`, `{"content":[{"type":"text","text":"{\"n\":1.0}"}],"structuredContent":{"n":1.0}}`, ""},
		{"native", `"a\u00e9"`, `{"content":[{"type":"text","text":"aé"}]}`, `{"resultType":"complete","content":[{"type":"text","text":"aé"}],"structuredContent":"a\u00e9"}`},
		{"native", `[1, 2]`, `{"content":[{"type":"text","text":"[1, 2]"}]}`, `{"resultType":"complete","content":[{"type":"text","text":"[1, 2]"}],"structuredContent":[1, 2]}`},
		{"native", `7`, `{"content":[{"type":"text","text":"7"}]}`, `{"resultType":"complete","content":[{"type":"text","text":"7"}],"structuredContent":7}`},
		{"native", `null`, `{"content":[]}`, ""},
		{"native", `{"content":[{"type":"image","data":""}],"isError":true}`, `{"content":[{"type":"image","data":""}],"isError":true}`, ""},
		{"native", `{"content":"text"}`, `{"content":[{"type":"text","text":"{\"content\":\"text\"}"}],"structuredContent":{"content":"text"}}`, ""},
		{"native", `{"content":[{"type":"paragraph"}]}`, `{"content":[{"type":"text","text":"{\"content\":[{\"type\":\"paragraph\"}]}"}],"structuredContent":{"content":[{"type":"paragraph"}]}}`, ""},
		{"native", `{"content":[],"next":5}`, `{"content":[{"type":"text","text":"{\"content\":[],\"next\":5}"}],"structuredContent":{"content":[],"next":5}}`, ""},
		{"native", `{"content":[],"isError":false}`, `{"content":[],"isError":false}`, ""},
		{"native", `{"content":[{}]}`, `{"content":[{"type":"text","text":"{\"content\":[{}]}"}],"structuredContent":{"content":[{}]}}`, ""},
		{"mcp", "{\n \"content\": [],\r\n\"isError\":true}", `{  "content": [],  "isError":true}`, `{"resultType":"complete","content": [],  "isError":true}`},
		{"mcp", `{}`, `{"content":[]}`, ""},
		{"mcp", `{"content":[],"structuredContent":[1],"x":1}`, `{"content":[],"x":1}`, `{"resultType":"complete","content":[],"structuredContent":[1],"x":1}`},
		{"mcp", `{"content":[],"\u0073tructuredContent":null}`, `{"content":[]}`, `{"resultType":"complete","content":[],"\u0073tructuredContent":null}`},
		{"mcp", `{"structuredContent":{"content":1}}`, `{"content":[],"structuredContent":{"content":1}}`, ""},
		{"mcp", `"hello"`, `{"content":[{"type":"text","text":"hello"}]}`, `{"resultType":"complete","content":[{"type":"text","text":"hello"}],"structuredContent":"hello"}`},
		{"mcp", `null`, `{"content":[]}`, ""},
		{"mcp", `{"resultType":"input_required"}`, `{"content":[],"resultType":"input_required"}`, `{"content":[],"resultType":"complete"}`},
	} {
		arguments := `,"arguments":` + string(pack(t, tt.give))
		p.want(callMessage("1", "ext_"+tt.name+"_give", arguments), `{"jsonrpc":"2.0","id":1,"result":`+tt.legacy+`}`)
		if tt.modern == "" {
			tt.modern = `{"resultType":"complete",` + tt.legacy[1:]
		}
		p.want(callMessage("1", "ext_"+tt.name+"_give", arguments+","+modernMeta), `{"jsonrpc":"2.0","id":1,"result":`+tt.modern+`}`)
	}
	if got := p.ask(callMessage("1", "ext_mcp_give", `,"arguments":`+string(pack(t, `{"x":"`+strings.Repeat("x", 2000)+`"}`)))); !strings.Contains(got, `The result of ext_mcp_give is 2 KB, over the limit of 2 KB. It has run.`) {
		t.Errorf("a large result: %.500s", got)
	}
}

// pack and unpack transport a result as an argument.
func pack(t *testing.T, result string) []byte {
	out, err := json.Marshal(map[string]string{"result": result})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func unpack(t *testing.T, args json.RawMessage) string {
	var p struct{ Result string }
	if err := json.Unmarshal(args, &p); err != nil {
		t.Error(err)
	}
	return p.Result
}

// TestParallelCalls checks that each of many answers has the id of its request.
func TestParallelCalls(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "echo"))
	b.serve("x", func(_ *nats.Msg, _ string, params json.RawMessage) (string, error) { return string(params), nil })
	p := b.door(Options{}).pipe(t)
	const n = 2000
	go func() { // ends when everything is sent
		for i := range n {
			p.send(callMessage(fmt.Sprint(i), "ext_x_echo", fmt.Sprintf(`,"arguments":{"n":%d}`, i)))
		}
	}()
	seen := map[int]bool{}
	refused := 0
	for range n {
		var answer struct {
			ID     int
			Result struct {
				Arguments struct{ N *int }
				IsError   bool
			}
		}
		line := p.next()
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			t.Fatal(err)
		}
		if answer.Result.IsError && strings.Contains(line, "calls are already running, which is the limit") {
			refused++
		} else if answer.Result.Arguments.N == nil || *answer.Result.Arguments.N != answer.ID {
			t.Fatalf("the answer of request %d is %s", answer.ID, line)
		}
		seen[answer.ID] = true
	}
	if len(seen) != n {
		t.Errorf("%d of %d requests were answered", len(seen), n)
	}
	t.Logf("%d of %d calls were over the limit of 256 at once", refused, n)
}

func TestCallLimit(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "wait"))
	release := make(chan struct{})
	b.serve("x", func(*nats.Msg, string, json.RawMessage) (string, error) { <-release; return "{}", nil })
	p := b.door(Options{MaxCalls: 2}).pipe(t)
	p.send(callMessage("1", "ext_x_wait", ""), callMessage("2", "ext_x_wait", ""))
	refused := p.ask(callMessage("3", "ext_x_wait", ""))
	if !strings.Contains(refused, `"text":"2 calls are already running, which is the limit. ext_x_wait was not run. Call it again when some of them have ended."`) {
		t.Errorf("the third call: %s", refused)
	}
	close(release)
	p.next()
	p.next()
	p.want(callMessage("4", "ext_x_wait", ""), `{"jsonrpc":"2.0","id":4,"result":{"content":[]}}`)
}

// TestProgress checks that progress precedes the result, has the client's token, rises, and is not sent without a token.
func TestProgress(t *testing.T) {
	b := newBed(t)
	spec := mesh.Spec{ID: "x", Version: "1.0.0", Dialect: "mcp", Subject: "ext.x.rpc", Features: []string{"stream"}, Tools: []mesh.Tool{tool("x", "work")}}
	b.put("spec.x", spec)
	b.state("x", "ready", "")
	b.serve("x", func(m *nats.Msg, _ string, params json.RawMessage) (string, error) {
		for _, value := range []string{"1", "2.5", "2", "bad", "3e0"} {
			frame := nats.NewMsg(m.Reply)
			frame.Header.Set("Ext-Frame", "progress")
			frame.Data = []byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":` + value + `,"message":"m"}}`)
			if err := b.nc.PublishMsg(frame); err != nil {
				t.Error(err)
			}
		}
		return "{}", nil
	})
	p := b.door(Options{}).pipe(t)
	for _, token := range []string{`"abc"`, "7", "9007199254740993"} {
		p.send(callMessage("1", "ext_x_work", `,"_meta":{"progressToken":`+token+`}`))
		var last string
		for {
			line := p.next()
			if strings.Contains(line, `"result":{"content":[]}`) {
				break
			}
			if !strings.Contains(line, `"params":{"progressToken":`+token+`,"progress":`) {
				t.Fatalf("progress of the token %s: %s", token, line)
			}
			if value := line[strings.Index(line, `"progress":`)+11]; string(value) < last {
				t.Errorf("progress falls: %s after %s", line, last)
			} else {
				last = string(value)
			}
		}
		if last != "3" {
			t.Errorf("the last progress before the result is %q, want 3", last)
		}
	}
	p.want(callMessage("1", "ext_x_work", ""), `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
	p.want(callMessage("1", "ext_x_work", `,"_meta":{"progressToken":{}}`), `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
}

// TestCancel checks that a cancelled call is cancelled on the mesh, and not answered.
func TestCancel(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "wait"))
	called := make(chan string, 1)
	b.serve("x", func(m *nats.Msg, _ string, _ json.RawMessage) (string, error) {
		called <- m.Header.Get("Ext-Call-Id")
		return "", errSilent
	})
	cancelled := make(chan string, 1)
	if _, err := b.nc.Subscribe("ext.x.cancel", func(m *nats.Msg) { cancelled <- string(m.Data) }); err != nil {
		t.Fatal(err)
	}
	p := b.door(Options{}).pipe(t)
	for _, id := range []string{"1", `"a"`} {
		p.send(callMessage(id, "ext_x_wait", ""))
		callID := <-called
		if got := p.ask(callMessage(id, "ext_x_wait", "")); !strings.Contains(got, "a request with this id is still running") {
			t.Errorf("the same id again: %s", got)
		}
		p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `,"reason":"r"}}`)
		if got := <-cancelled; !strings.Contains(got, callID) {
			t.Errorf("%s was cancelled on the mesh, want %s", got, callID)
		}
		p.want(`{"jsonrpc":"2.0","id":2,"method":"ping"}`, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	}
	select {
	case line := <-p.lines:
		t.Errorf("a cancelled call was answered: %s", line)
	default:
	}
}

// TestCancelAtOnce: a cancellation that arrives together with its request ends it.
func TestCancelAtOnce(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "wait"))
	b.serve("x", func(*nats.Msg, string, json.RawMessage) (string, error) { return "", errSilent })
	d := b.door(Options{})
	p := d.pipe(t)
	for n := range 100 {
		id := strconv.Itoa(n)
		p.send(callMessage(id, "ext_x_wait", "") + "\n" + `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
	}
	natstest.Eventually(t, "all calls have ended", func() bool { return d.running.Load() == 0 })
	p.want(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
}

// TestListChanged checks who is notified of which changes.
func TestListChanged(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "a"))
	d := b.door(Options{})
	legacy, modern, silent := d.pipe(t), d.pipe(t), d.pipe(t)
	legacy.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	silent.ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	listen := func(id, filter string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"subscriptions/listen","params":{"notifications":` + filter + `,` + modernMeta + `}}`
	}
	tag := func(id string) string { return `"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}` }
	for _, id := range []string{"1", `"two"`} { // several at once on one pipe
		modern.want(listen(id, `{"toolsListChanged":true,"othersChanged":true}`),
			`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{`+tag(id)+`,"notifications":{"toolsListChanged":true}}}`)
	}
	modern.want(listen("3", `{}`), `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{`+tag("3")+`,"notifications":{}}}`)
	if got, want := modern.next(), `{"jsonrpc":"2.0","id":3,"result":{"resultType":"complete",`+tag("3")+`}}`; got != want {
		t.Errorf("a subscription to nothing ends with %s, want %s", got, want)
	}
	modern.want(listen("4", "7"), `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"params.notifications must be an object"}}`)

	// A restart and a new version of the same tools change nothing that clients see.
	b.state("x", "restarting", "exit status 1")
	b.state("x", "ready", "")
	b.put("spec.x", mesh.Spec{ID: "x", Version: "1.0.1", Dialect: "mcp", Subject: "ext.x.rpc", Tools: []mesh.Tool{tool("x", "a")}})
	b.put("spec.y", mesh.Spec{ID: "y", Version: "1.0.0", Dialect: "mcp", Subject: "ext.y.rpc", Tools: []mesh.Tool{tool("y", "b")}})
	natstest.Eventually(t, "the new version is read", func() bool {
		e, ok := d.mesh.Load().catalog.Get("y")
		return ok && e.SpecRevision > 0
	})
	b.state("y", "ready", "")
	if got := legacy.next(); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
		t.Errorf("legacy: %s", got)
	}
	if got := legacy.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); !strings.Contains(got, "ext_y_b") {
		t.Errorf("after the notification the list is %s", got)
	}
	want := map[string]bool{}
	for _, id := range []string{"1", `"two"`} {
		want[`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{`+tag(id)+`}}`] = true
	}
	for range 2 {
		if got := modern.next(); !want[got] {
			t.Errorf("modern: %s", got)
		} else {
			delete(want, got)
		}
	}
	// After one of them is cancelled the other still works.
	listeners := func() int { d.view.mu.Lock(); defer d.view.mu.Unlock(); return len(d.view.listeners) }
	before := listeners()
	modern.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"two"}}`)
	natstest.Eventually(t, "the subscription has ended", func() bool { return listeners() == before-1 })
	b.put("state.y", json.RawMessage(`{"state":"gated","since":"2026-01-01T00:00:00Z"}`))
	if got := modern.next(); !strings.Contains(got, tag("1")) {
		t.Errorf("modern: %s", got)
	}
	silent.want(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	silent.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	silent.want(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	b.state("y", "ready", "")
	if got := silent.next(); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
		t.Errorf("after it is initialized: %s", got)
	}
}

// TestNotificationPace checks that a change is announced at once, and the following ones together.
func TestNotificationPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		l := &listener{send: func() { n.Add(1) }}
		l.changed(time.Second)
		if sent := n.Load(); sent != 1 {
			t.Fatal("the first change is not announced at once")
		}
		for range 100 {
			l.changed(time.Second)
		}
		advance(999 * time.Millisecond)
		if sent := n.Load(); sent != 1 {
			t.Errorf("%d notifications within the pause", sent)
		}
		advance(time.Millisecond)
		if sent := n.Load(); sent != 2 {
			t.Errorf("%d notifications after the pause, want 2", sent)
		}
		advance(time.Hour)
		l.changed(time.Second)
		if sent := n.Load(); sent != 3 {
			t.Errorf("%d notifications after a change in a quiet time, want 3", sent)
		}
	})
}

// advance lets the virtual time of a bubble pass.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestNamesOfOtherForms calls tools by names that are not listed, and checks that a filter holds for all of them.
func TestNamesOfOtherForms(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "echo"), tool("x", "read", "annotations", `{"readOnlyHint":true}`))
	b.serve("x", func(_ *nats.Msg, _ string, params json.RawMessage) (string, error) {
		return `{"called":` + string(params) + `}`, nil
	})
	open := b.door(Options{}).pipe(t)
	for _, name := range []string{"ext_x_echo", "x/echo"} {
		open.want(callMessage("1", name, ""), `{"jsonrpc":"2.0","id":1,"result":{"content":[],"called":{"name":"echo","arguments":{}}}}`)
	}
	filtered := b.door(Options{View: ViewOptions{Exclude: []string{"x/echo"}}}).pipe(t)
	readOnly := b.door(Options{View: ViewOptions{ReadOnly: true}}).pipe(t)
	for _, p := range []*pipe{filtered, readOnly} {
		for _, name := range []string{"ext_x_echo", "x/echo", "echo"} {
			if got := p.ask(callMessage("1", name, "")); !strings.Contains(got, `"error":{"code":-32602,"message":"There is no tool `+name+` here.`) || strings.Contains(got, `called`) {
				t.Errorf("%s is not hidden: %s", name, got)
			}
		}
		p.want(callMessage("1", "ext_x_read", ""), `{"jsonrpc":"2.0","id":1,"result":{"content":[],"called":{"name":"read","arguments":{}}}}`)
	}
}

// TestOwnNameShared checks that the error for a tool's own name has the names to use, after another tool got the same name.
func TestOwnNameShared(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "find"))
	b.serve("x", func(*nats.Msg, string, json.RawMessage) (string, error) { return `{"from":"x"}`, nil })
	d := b.door(Options{View: ViewOptions{Names: NamesOwn}})
	p := d.pipe(t)
	p.want(callMessage("1", "find", ""), `{"jsonrpc":"2.0","id":1,"result":{"content":[],"from":"x"}}`)
	b.ready("y", "mcp", tool("y", "find"))
	natstest.Eventually(t, "both tools have their registered names", func() bool { return len(d.view.now.Load().byName) == 2 })
	p.want(callMessage("1", "find", ""), `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,`+
		`"message":"There is no tool find here. Similar names: ext_x_find, ext_y_find.","data":{"nearest":["ext_x_find","ext_y_find"]}}}`)
	p.want(callMessage("1", "ext_x_find", ""), `{"jsonrpc":"2.0","id":1,"result":{"content":[],"from":"x"}}`)
}

func TestOwnErrors(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "fail"))
	code := rpc.Code(0)
	b.serve("x", func(*nats.Msg, string, json.RawMessage) (string, error) {
		return "", &rpc.Error{Code: code, Message: "no <city>", Data: json.RawMessage(`{"n":1.0,"kind":"not_found"}`)}
	})
	d := b.door(Options{})
	p, w := d.pipe(t), d.web(t, HTTPOptions{})
	for _, code = range []rpc.Code{-32602, 7, -32001, -32021, rpc.CodeMethodNotFound} {
		own := fmt.Sprintf(`{"code":%d,"message":"no \u003ccity\u003e","data":{"n":1.0,"kind":"not_found"}}`, code)
		p.want(callMessage("1", "ext_x_fail", ""), `{"jsonrpc":"2.0","id":1,"error":`+own+`}`)
		if code == -32001 { // reserved for the protocol in the modern era
			own = `{"code":-32603,"message":"no \u003ccity\u003e","data":{"code":-32001,"data":{"n":1.0,"kind":"not_found"}}}`
		}
		p.want(callMessage("1", "ext_x_fail", ","+modernMeta), `{"jsonrpc":"2.0","id":1,"error":`+own+`}`)
		if a := w.do("POST", "", callMessage("1", "ext_x_fail", ","+modernMeta), modernHeader("tools/call", "ext_x_fail")); a.status != 200 || a.body != `{"jsonrpc":"2.0","id":1,"error":`+own+`}` {
			t.Errorf("over HTTP: %+v", a)
		}
	}
}
