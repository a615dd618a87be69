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
		`{"_meta":{"progressToken":null}}`:                               `{"_meta":{"progressToken":null}}`,
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

// unary is the sink of a caller that takes no frames.
type unary struct{}

func (unary) Deliver(*jsonrpc.Exchange, jsonrpc.Reply) {}

// TestLogLevelFirst: a call is sent when its log level has been set, or cannot be; a call that was cancelled before is not.
func TestLogLevelFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		reply  jsonrpc.Reply
		cancel bool
		want   string
	}{
		"set":       {reply: jsonrpc.NewReply(json.RawMessage("{}"), nil), want: "tools/call"},
		"refused":   {reply: jsonrpc.NewReply(nil, rpc.Errorf(rpc.CodeInternal, rpc.RanNo, "no")), want: "tools/call"},
		"timeout":   {reply: jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "late")}, want: "tools/call"},
		"cancelled": {reply: jsonrpc.NewReply(json.RawMessage("{}"), nil), cancel: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &scriptedLink{answer: func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) { return jsonrpc.Reply{}, false }}
			f := testForwarder(l)
			f.handshake.Store(&handshake{dialect: "mcp", names: map[string]bool{"a": true}, raw: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"logging":{}}}`)})
			sink := &frames{}
			x := &jsonrpc.Exchange{Sink: sink, Hold: true}
			f.HandleAsync(&rpc.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"a","_meta":{"io.modelcontextprotocol/logLevel":"info"}}`)}, x)
			if len(l.sent) != 1 || l.sent[0] != `logging/setLevel {"level":"info"}` {
				t.Fatalf("the server got %q before it had answered", l.sent)
			}
			if tt.cancel {
				f.CancelExchange(x)
			}
			level := l.waiting[0]
			l.waiting = nil
			level.Sink.Deliver(level, tt.reply)
			switch {
			case tt.want == "" && (len(l.sent) != 1 || sink.reply.ErrorCode() != rpc.CodeCancelled):
				t.Errorf("the server got %q, the caller %v", l.sent, sink.reply.Err)
			case tt.want != "" && (len(l.waiting) != 1 || l.waiting[0].Method != tt.want || l.waiting[0].Hold):
				t.Errorf("the server got %q", l.sent)
			}
		})
	}
}

// TestLogMessages checks that a log message reaches the call that is alone, at the level that it wants, and no other.
func TestLogMessages(t *testing.T) {
	l := &scriptedLink{answer: func(x *jsonrpc.Exchange) (jsonrpc.Reply, bool) {
		return jsonrpc.NewReply(json.RawMessage("{}"), nil), x.Method == "logging/setLevel"
	}}
	f := testForwarder(l)
	f.handshake.Store(&handshake{dialect: "mcp", names: map[string]bool{"a": true}, raw: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"logging":{}}}`)})
	call := func(level string) (*frames, func()) {
		sink := &frames{}
		x := &jsonrpc.Exchange{Sink: sink, Deadline: time.Now().Add(time.Hour)}
		f.HandleAsync(&rpc.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"a","_meta":{"io.modelcontextprotocol/logLevel":` + level + `}}`)}, x)
		return sink, func() { f.CancelExchange(x) }
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
	if n := f.messages.calls.Load(); n != 0 || len(f.messages.wanted) > 0 {
		t.Errorf("%d calls are left, and %d that want messages", n, len(f.messages.wanted))
	}
}
