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

// next returns the oldest exchange without an answer.
func (s *scriptedLink) next() *jsonrpc.Exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.waiting[0]
	s.waiting = s.waiting[1:]
	return x
}

// TestLogLevelFirst: a call is sent when its log level has been set, or cannot be, unless it was cancelled before or is
// too late.
func TestLogLevelFirst(t *testing.T) {
	ok := jsonrpc.NewReply(json.RawMessage("{}"), nil)
	failed := func(code rpc.Code) jsonrpc.Reply { return jsonrpc.Reply{Err: rpc.Errorf(code, rpc.RanMaybe, "no")} }
	for name, tt := range map[string]struct {
		reply    jsonrpc.Reply
		cancel   bool
		deadline time.Time
		want     rpc.Code // of the caller; 0: the call is sent
		again    bool     // the next call sets the level again
	}{
		"set":       {reply: ok},
		"refused":   {reply: jsonrpc.NewReply(nil, rpc.Errorf(rpc.CodeInternal, rpc.RanNo, "no"))},
		"timeout":   {reply: failed(rpc.CodeTimeout)},
		"away":      {reply: failed(rpc.CodeUnavailable), again: true},
		"cancelled": {reply: ok, cancel: true, want: rpc.CodeCancelled},
		"too late":  {reply: ok, deadline: time.Now(), want: rpc.CodeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			l := &scriptedLink{answer: func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) { return jsonrpc.Reply{}, false }}
			f, callTool := loggingForwarder(l)
			sink, x := callTool(`"info"`, tt.deadline)
			if len(l.sent) != 1 || l.sent[0] != `logging/setLevel {"level":"info"}` {
				t.Fatalf("the server got %q before it had answered", l.sent)
			}
			if tt.cancel {
				f.CancelExchange(x)
			}
			level := l.next()
			level.Sink.Deliver(level, tt.reply)
			switch {
			case tt.want != 0 && (len(l.sent) != 1 || sink.reply.ErrorCode() != tt.want):
				t.Errorf("the server got %q, the caller %v", l.sent, sink.reply.Err)
			case tt.want == 0 && (len(l.waiting) != 1 || l.waiting[0].Method != "tools/call" || l.waiting[0].Hold):
				t.Errorf("the server got %q", l.sent)
			}
			callTool(`"info"`, time.Time{})
			if last := l.sent[len(l.sent)-1]; strings.HasPrefix(last, "logging") != tt.again {
				t.Errorf("the next call sent %q", last)
			}
		})
	}
}

// TestLogLevelsAtOnce: calls that need a level while one is being set wait for one request for the lowest of them.
func TestLogLevelsAtOnce(t *testing.T) {
	l := &scriptedLink{answer: func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) { return jsonrpc.Reply{}, false }}
	f, callTool := loggingForwarder(l)
	for _, level := range []string{`"warning"`, `"info"`, `"warning"`, `"debug"`} {
		callTool(level, time.Time{})
	}
	level := l.next()
	level.Sink.Deliver(level, jsonrpc.NewReply(json.RawMessage("{}"), nil)) // warning
	f.messages.forgetLevel()                                                // debug is set in a session that ends
	level = l.waiting[len(l.waiting)-1]
	l.waiting = l.waiting[:len(l.waiting)-1]
	level.Sink.Deliver(level, jsonrpc.NewReply(json.RawMessage("{}"), nil))
	level = l.waiting[len(l.waiting)-1]
	level.Sink.Deliver(level, jsonrpc.NewReply(json.RawMessage("{}"), nil))
	var sent []string
	for _, s := range l.sent {
		method, params, _ := strings.Cut(s, " ")
		if method == "tools/call" {
			params = ""
		}
		sent = append(sent, method+params)
	}
	if want := []string{`logging/setLevel{"level":"warning"}`, "tools/call", "tools/call", `logging/setLevel{"level":"debug"}`,
		`logging/setLevel{"level":"debug"}`, "tools/call", "tools/call"}; !slices.Equal(sent, want) {
		t.Errorf("the server got %q", sent)
	}
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
