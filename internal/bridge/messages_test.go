package bridge

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// frames is the sink of a caller that takes frames.
type frames struct {
	got   []string
	reply jsonrpc.Reply
}

func (f *frames) Deliver(_ *jsonrpc.Exchange, r jsonrpc.Reply) { f.reply = r }
func (f *frames) Progress(notification []byte)                 { f.got = append(f.got, string(notification)) }

// TestProgressTokens: a caller cannot choose the token under which the child reports the progress of another caller.
func TestProgressTokens(t *testing.T) {
	var p progress
	for in, want := range map[string]string{
		`{"_meta":{"progressToken":"a"}}`:                                `{"_meta":{"progressToken":1}}`,
		`{"_meta":{"progress\u0054oken":7}}`:                             `{"_meta":{"progress\u0054oken":1}}`,
		`{"_meta":{"progressToken":7.` + strings.Repeat("0", 300) + `}}`: `{"_meta":{"progressToken":0}}`,
		`{"_meta":{"progressToken":null}}`:                               `{"_meta":{"progressToken":0}}`,
		`{"_meta":{"progressToken":{"a":1}}}`:                            `{"_meta":{"progressToken":0}}`,
		`{"_meta":{"a":1}}`:                                              `{"_meta":{"a":1}}`,
		`{"arguments":{"path":"C:\\x"}}`:                                 `{"arguments":{"path":"C:\\x"}}`,
	} {
		p.last = 0
		got, done := p.register([]byte(in), &frames{})
		if string(got) != want {
			t.Errorf("%.80s became %s", in, got)
		}
		if done != nil {
			done()
		}
	}
	if got, _ := p.register([]byte(`{"_meta":{"progressToken":7}}`), &unary{}); string(got) != `{"_meta":{"progressToken":0}}` {
		t.Errorf("a caller that takes no progress: %s", got)
	}
}

// TestReturnedTokens: some servers return the token as a text, or all numbers with a fraction.
func TestReturnedTokens(t *testing.T) {
	for _, token := range []string{"1", `"1"`, "1.0", "2", `"x"`, "-1"} {
		p, to := new(progress), new(frames)
		p.register([]byte(`{"_meta":{"progressToken":"a"}}`), to)
		p.deliver([]byte(`{"progressToken":` + token + `,"progress":5}`))
		want := 0
		if strings.Trim(token, `"`)[0] == '1' {
			want = 1
		}
		if len(to.got) != want || want > 0 && !strings.Contains(to.got[0], `{"progressToken":"a","progress":5}`) {
			t.Errorf("%s: %q", token, to.got)
		}
	}
}

// TestParamsOfRequests: a request whose params are no object, which some servers would not answer, is not forwarded.
func TestParamsOfRequests(t *testing.T) {
	l := &scriptedLink{answer: func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) { return jsonrpc.NewReply([]byte("{}"), nil), true }}
	f := testForwarder(l)
	f.handshake.Store(&handshake{dialect: "mcp", raw: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"resources":{}}}`)})
	for params, forwarded := range map[string]bool{`{"uri":"a://b"}`: true, `{"_meta":null,"uri":"a://b"}`: true, `{"_meta":[1]}`: true, "": true, "null": false, "7": false, "[]": false} {
		l.sent = nil
		sink := &frames{}
		f.HandleAsync(&rpc.Request{Method: "resources/read", Params: json.RawMessage(params)}, &jsonrpc.Exchange{Sink: sink, Deadline: time.Now().Add(time.Minute)})
		if len(l.sent) > 0 != forwarded || !forwarded && (sink.reply.Err == nil || sink.reply.Err.Code != rpc.CodeInvalidParams) || strings.Contains(params, "_meta") && !strings.Contains(l.sent[0], `"_meta":{}`) {
			t.Errorf("%s: %d sent, %v", params, len(l.sent), sink.reply.Err)
		}
	}
}

// unary is the sink of a caller that takes no frames.
type unary struct{}

func (unary) Deliver(*jsonrpc.Exchange, jsonrpc.Reply) {}

// loggingForwarder is a forwarder of a server that sends log messages, and callTool starts a call at a level.
func loggingForwarder(l *scriptedLink) (f *forwarder, callTool func(level string, deadline time.Time) (*frames, *jsonrpc.Exchange)) {
	f = testForwarder(l)
	f.handshake.Store(&handshake{dialect: "mcp", names: map[string]bool{"a": true}, raw: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"logging":{}}}`)})
	return f, func(level string, deadline time.Time) (*frames, *jsonrpc.Exchange) {
		sink := &frames{}
		x := &jsonrpc.Exchange{Sink: sink, Hold: true, Deadline: deadline}
		f.HandleAsync(&rpc.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"a","_meta":{"io.modelcontextprotocol/logLevel":` + level + `}}`)}, x)
		return sink, x
	}
}

// TestLogLevels: the first call that wants a lower level sends it before itself, unless another one is being set; a level that
// did not reach the server is sent again.
func TestLogLevels(t *testing.T) {
	l := &scriptedLink{answer: func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) { return jsonrpc.Reply{}, false }}
	f, callTool := loggingForwarder(l)
	calls := func(level string, want ...string) (first *jsonrpc.Exchange) {
		t.Helper()
		l.sent, l.waiting = nil, nil
		callTool(level, time.Time{})
		for i, sent := range l.sent {
			if strings.HasPrefix(sent, "tools/call ") {
				l.sent[i] = "call"
			}
		}
		if !slices.Equal(l.sent, want) {
			t.Fatalf("a call at %s sent %q, want %q", level, l.sent, want)
		}
		return l.waiting[0]
	}
	answer := func(level *jsonrpc.Exchange, r jsonrpc.Reply) { level.Sink.Deliver(level, r) }
	ok := jsonrpc.NewReply(json.RawMessage("{}"), nil)
	refused := jsonrpc.NewReply(nil, rpc.Errorf(rpc.CodeInternal, rpc.RanNo, "no"))
	failed := func(code rpc.Code) jsonrpc.Reply { return jsonrpc.Reply{Err: rpc.Errorf(code, rpc.RanMaybe, "no")} }

	warning := calls(`"warning"`, `logging/setLevel {"level":"warning"}`, "call")
	calls(`"warning"`, "call")
	calls(`"debug"`, "call") // the server may handle two levels in any order
	answer(warning, ok)
	calls(`"error"`, "call")
	answer(calls(`"notice"`, `logging/setLevel {"level":"notice"}`, "call"), refused)
	calls(`"notice"`, "call")
	answer(calls(`"info"`, `logging/setLevel {"level":"info"}`, "call"), failed(rpc.CodeUnavailable))
	answer(calls(`"info"`, `logging/setLevel {"level":"info"}`, "call"), failed(rpc.CodeTimeout))
	calls(`"info"`, "call")
	late := calls(`"debug"`, `logging/setLevel {"level":"debug"}`, "call")
	f.messages.forgetLevel() // debug is set in a session that ends
	again := calls(`"debug"`, `logging/setLevel {"level":"debug"}`, "call")
	answer(late, ok)
	answer(again, failed(rpc.CodeUnavailable))
	calls(`"debug"`, `logging/setLevel {"level":"debug"}`, "call")
}

// TestLogMessages checks that a log message reaches the call that is alone, at the level that it wants, and no other.
func TestLogMessages(t *testing.T) {
	l := &scriptedLink{answer: func(x *jsonrpc.Exchange) (jsonrpc.Reply, bool) {
		return jsonrpc.NewReply(json.RawMessage("{}"), nil), x.Method == "logging/setLevel"
	}}
	f, callTool := loggingForwarder(l)
	call := func(level string) (*frames, func()) {
		sink, _ := callTool(level, time.Now().Add(time.Hour))
		x := l.waiting[len(l.waiting)-1]
		return sink, func() { x.Sink.Deliver(x, jsonrpc.NewReply(json.RawMessage("{}"), nil)) }
	}
	message := func(level string) { f.messages.deliver([]byte(`{"level":"` + level + `","data":1.0}`)) }
	message("error") // no call
	one, endOne := call(`"info"`)
	message("debug")
	message("info")
	message("nonsense")
	two, endTwo := call(`"debug"`)
	message("emergency") // whose is it?
	endOne()
	message("debug")
	endTwo()
	message("emergency")
	none, endNone := call(`"loud"`)
	message("emergency")
	endNone()
	const want = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"LEVEL","data":1.0}}`
	if !slices.Equal(one.got, []string{strings.Replace(want, "LEVEL", "info", 1)}) || !slices.Equal(two.got, []string{strings.Replace(want, "LEVEL", "debug", 1)}) || len(none.got) > 0 {
		t.Errorf("the calls got %q, %q and %q", one.got, two.got, none.got)
	}
	levels := slices.DeleteFunc(l.sent, func(s string) bool { return !strings.HasPrefix(s, "logging") })
	if !slices.Equal(levels, []string{`logging/setLevel {"level":"info"}`, `logging/setLevel {"level":"debug"}`}) {
		t.Errorf("the server got %q", levels)
	}
	_, cancelled := callTool(`"info"`, time.Time{})
	f.CancelExchange(cancelled)
	after, endAfter := call(`"info"`)
	message("error") // it may be about the call that was cancelled
	endAfter()
	if len(after.got) > 0 {
		t.Errorf("a call got %q after another was cancelled", after.got)
	}
	if n := f.messages.calls.Load(); n != 0 || len(f.messages.wanted) > 0 {
		t.Errorf("%d calls are left, and %d that want messages", n, len(f.messages.wanted))
	}
}
