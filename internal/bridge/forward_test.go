package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// scriptedLink is a link that records what it is sent; answer returns the result of each exchange.
type scriptedLink struct {
	fakeLink
	answer func(x *jsonrpc.Exchange) (jsonrpc.Reply, bool) // false: no result yet

	mu            sync.Mutex
	sent          []string
	waiting       []*jsonrpc.Exchange
	cancelled     int
	notifications []string
	published     []string
}

func (s *scriptedLink) Start(x *jsonrpc.Exchange) {
	s.mu.Lock()
	s.sent = append(s.sent, x.Method+" "+string(x.Params))
	s.mu.Unlock()
	r, ok := s.answer(x)
	if ok {
		x.Sink.Deliver(x, r)
		return
	}
	s.mu.Lock()
	s.waiting = append(s.waiting, x)
	s.mu.Unlock()
}

func (s *scriptedLink) Cancel(x *jsonrpc.Exchange) (uint64, bool) {
	s.mu.Lock()
	i := slices.Index(s.waiting, x)
	if i < 0 {
		s.mu.Unlock()
		return 0, false
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	s.cancelled++
	s.mu.Unlock()
	x.Sink.Deliver(x, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeCancelled, rpc.RanMaybe, "cancelled")})
	return 7, true
}

func (s *scriptedLink) Notify(method string, params json.RawMessage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notifications = append(s.notifications, method+" "+string(params))
	return nil
}

func result(text string) func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) {
	return func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) {
		return jsonrpc.NewReply(json.RawMessage(text), nil), true
	}
}

func failing(e *rpc.Error) func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) {
	return func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) { return jsonrpc.Reply{Err: e}, true }
}

func neverAnswer(*jsonrpc.Exchange) (jsonrpc.Reply, bool) { return jsonrpc.Reply{}, false }

// replicas returns ready forwarders for these links, as replicas of one workload.
func replicas(dialect manifest.Dialect, links ...*scriptedLink) []*forwarder {
	all := new(replicaSet)
	var out []*forwarder
	for _, l := range links {
		f := testForwarder(l)
		f.replicas = all
		f.handshake.Store(&handshake{dialect: dialect, hooks: []string{"before"},
			names: map[string]bool{"say": true, "list": true, "call": true, "a/b": true}})
		all.add(f)
		out = append(out, f)
	}
	return out
}

func TestToolForms(t *testing.T) {
	for _, tt := range []struct {
		dialect        manifest.Dialect
		method, params string
		want           string
	}{
		{manifest.Ext, "tools/say", `{"a":1.0}`, `tools/say {"a":1.0}`},
		{manifest.Ext, "tools/call", `{"name":"say","arguments":{"a":1.0}}`, `tools/say {"a":1.0}`},
		{manifest.Ext, "tools/call", `{"name":"list","arguments":{"a":1}}`, `tools/call {"name":"list","arguments":{"a":1}}`},
		{manifest.Ext, "tools/call", `{"name":"call"}`, `tools/call {"name":"call","arguments":{}}`},
		{manifest.Ext, "tools/a/b", ``, `tools/a/b `},
		{manifest.MCP, "tools/say", `{"a":1.0}`, `tools/call {"name":"say","arguments":{"a":1.0}}`},
		{manifest.MCP, "tools/say", ``, `tools/call {"name":"say","arguments":{}}`},
		{manifest.MCP, "tools/call", `{"name":"say", "x":1.0}`, `tools/call {"name":"say", "x":1.0}`},
		{manifest.Ext, "hooks/before", `{}`, `hooks/before {}`},
		{manifest.Ext, "hooks/after", `{}`, ""}, // not listed
		{manifest.MCP, "hooks/before", `{}`, ""},
		{manifest.Ext, "resources/list", `{}`, ""},
		{manifest.MCP, "resources/list", `{}`, "resources/list {}"},
		{manifest.Ext, "tools/other", `{}`, ""},
		{manifest.Ext, "tools/call", `{"name":"other"}`, ""},
		{manifest.MCP, "tools/other", `{}`, ""},
		{manifest.MCP, "tools/call", `{"name":"other"}`, ""},
		{manifest.MCP, "tools/call", `{"name":"s\u0061y"}`, `tools/call {"name":"s\u0061y"}`},
		{manifest.MCP, "tools/call", `{"name":7}`, ""},
		{manifest.MCP, "tools/call", `{}`, ""},
	} {
		l := &scriptedLink{answer: result("1")}
		f := replicas(tt.dialect, l)[0]
		_, err := f.Handle(t.Context(), &rpc.Request{Method: tt.method, Params: json.RawMessage(tt.params)})
		if got := strings.Join(l.sent, "; "); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %s %s was sent as %q, %v; want %q", tt.dialect, tt.method, tt.params, got, err, tt.want)
		}
	}
}

// TestListedToolIsSentOnce: an error from the child itself may come from a tool that ran, whatever its code and data. A
// tool that the child does not list is refused without forwarding the call, and marked as certainly not run.
func TestListedToolIsSentOnce(t *testing.T) {
	for _, dialect := range []manifest.Dialect{manifest.Ext, manifest.MCP} {
		for _, data := range []string{``, `,"data":{"kind":"method_not_found","ran":"no"}`} {
			l := &scriptedLink{}
			l.answer = func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) {
				r, err := jsonrpc.ParseReply([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"its own"` + data + `}}`))
				return r, err == nil
			}
			f := replicas(dialect, l, &scriptedLink{answer: result("2")})[0]
			for _, r := range []rpc.Request{{Method: "tools/say"}, {Method: "tools/call", Params: json.RawMessage(`{"name":"say"}`)}} {
				l.sent = nil
				_, err := f.Handle(t.Context(), &r)
				if len(l.sent) != 1 || !errors.Is(err, rpc.CodeMethodNotFound) || err.Error() != "its own" {
					t.Errorf("%s: %s was sent as %q, %v", dialect, r.Method, l.sent, err)
				}
			}
			_, err := f.Handle(t.Context(), &rpc.Request{Method: "tools/other"})
			if d := rpc.AsError(err).Details(); d.Kind != "method_not_found" || d.Ran != rpc.RanNo {
				t.Errorf("%s: a tool that is not listed: %v", dialect, err)
			}
		}
	}
}

func TestMaxResult(t *testing.T) {
	f := replicas(manifest.Ext, &scriptedLink{answer: result(`"` + strings.Repeat("x", 100) + `"`)})[0]
	for limit, want := range map[int]error{101: rpc.CodeTooLarge, 102: nil} {
		f.limits.maxResult = limit
		_, err := f.Handle(t.Context(), &rpc.Request{Method: "tools/say"})
		if !errors.Is(err, want) {
			t.Errorf("max_result %d: %v", limit, err)
		}
		if d := rpc.AsError(err); d != nil && (d.Details().Size != 102 || d.Details().Limit != 101) {
			t.Errorf("max_result %d: %s", limit, d.Data)
		}
	}
}

// TestMoveToReplica: a call that certainly did not run is moved to another replica, once.
func TestMoveToReplica(t *testing.T) {
	dead := rpc.Errorf(rpc.CodeExited, rpc.RanNo, "gone")
	for _, tt := range []struct {
		name    string
		first   *rpc.Error
		open    bool // the breaker of the first replica
		open2   bool // the breaker of the second one
		method  string
		second  func(*jsonrpc.Exchange) (jsonrpc.Reply, bool)
		want    string
		wantErr error
	}{
		{name: "dead", first: dead, second: result("2"), want: "2"},
		{name: "held off", open: true, second: result("2"), want: "2"},
		{name: "the other one held off", first: dead, open2: true, second: result("2"), wantErr: rpc.CodeExited},
		{name: "ping", first: dead, method: "ping", second: result("2"), wantErr: rpc.CodeExited},
		{name: "may have run", first: rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "gone"), second: result("2"), wantErr: rpc.CodeExited},
		{name: "out of time", first: rpc.Errorf(rpc.CodeTimeout, rpc.RanNo, "late"), second: result("2"), wantErr: rpc.CodeTimeout},
		{name: "both dead", first: dead, second: failing(dead), wantErr: rpc.CodeExited},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := &scriptedLink{answer: failing(tt.first)}, &scriptedLink{answer: tt.second}
			all := replicas(manifest.Ext, a, b)
			f := all[0]
			if tt.open {
				f.breaker = openBreaker(t)
			}
			if tt.open2 {
				all[1].breaker = openBreaker(t)
			}
			got, err := f.Handle(t.Context(), &rpc.Request{Method: cmp.Or(tt.method, "tools/say"), Params: json.RawMessage(`{"n":1.0}`)})
			if string(got) != tt.want || !errors.Is(err, tt.wantErr) {
				t.Errorf("got %s, %v; want %s, %v", got, err, tt.want, tt.wantErr)
			}
			if len(a.sent) > 1 || len(b.sent) > 1 || tt.want != "" && b.sent[0] != `tools/say {"n":1.0}` {
				t.Errorf("sent %q and %q", a.sent, b.sent)
			}
		})
	}
	t.Run("alone", func(t *testing.T) {
		f := replicas(manifest.Ext, &scriptedLink{answer: failing(dead)})[0]
		if _, err := f.Handle(t.Context(), &rpc.Request{Method: "tools/say"}); !errors.Is(err, rpc.CodeExited) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the other replica was removed", func(t *testing.T) {
		b := &scriptedLink{answer: result("2")}
		all := replicas(manifest.Ext, &scriptedLink{answer: failing(dead)}, b)
		all[0].replicas.remove(all[1])
		if _, err := all[0].Handle(t.Context(), &rpc.Request{Method: "tools/say"}); !errors.Is(err, rpc.CodeExited) || len(b.sent) > 0 {
			t.Errorf("got %v, sent %q", err, b.sent)
		}
	})
}

func openBreaker(t *testing.T) *breaker.Breaker {
	t.Helper()
	b := breaker.New("b", breaker.Settings{Threshold: 1})
	tok, err := b.Acquire()
	if err != nil {
		t.Fatal(err)
	}
	tok.Done(breaker.Failure)
	if s, _ := b.State(); s != heartbeat.BreakerOpen {
		t.Fatalf("the breaker is %s", s)
	}
	return b
}

// TestCancelMoved: a call is cancelled at the replica to which it was moved.
func TestCancelMoved(t *testing.T) {
	a := &scriptedLink{answer: failing(rpc.Errorf(rpc.CodeExited, rpc.RanNo, "gone"))}
	b := &scriptedLink{answer: neverAnswer}
	f := replicas(manifest.Ext, a, b)[0]
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.Handle(ctx, &rpc.Request{Method: "tools/say"}); !errors.Is(err, rpc.CodeCancelled) {
			t.Errorf("got %v", err)
		}
	})
	if a.cancelled != 0 || b.cancelled != 1 || len(b.notifications) != 1 || !strings.HasPrefix(b.notifications[0], `notifications/cancelled {"requestId":7,`) {
		t.Errorf("cancelled %d and %d, notified %q and %q", a.cancelled, b.cancelled, a.notifications, b.notifications)
	}
}

// TestCheckAfterCancel: a child is checked at the deadline of a call that its caller has cancelled, because it may hang.
func TestCheckAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replicas(manifest.Ext, &scriptedLink{answer: neverAnswer})[0]
		f.remote = false
		ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
		defer end()
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Second, cancel)
		if _, err := f.Handle(ctx, &rpc.Request{Method: "tools/say"}); !errors.Is(err, rpc.CodeCancelled) || len(f.check.signal) != 0 {
			t.Errorf("%v, %d checks", err, len(f.check.signal))
		}
		<-f.check.signal
		if _, limited := ctx.Deadline(); !limited || time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) != 10*time.Second {
			t.Errorf("checked at %v", time.Now())
		}
	})
}

// TestSendAt: of several requests for later the earliest and the latest are kept, in any order.
func TestSendAt(t *testing.T) {
	for _, order := range [][]time.Duration{{10, 30, 60}, {60, 30, 10}, {30, 60, 10}, {60, 10, 60}} {
		synctest.Test(t, func(t *testing.T) {
			s, began := dueSignal{signal: newSignal()}, time.Now()
			for _, after := range order {
				s.sendAt(began.Add(after * time.Second))
			}
			for _, want := range []time.Duration{10, 60} {
				if <-s.signal; time.Since(began) != want*time.Second {
					t.Errorf("%v: sent after %v, want %ds", order, time.Since(began), want)
				}
			}
			synctest.Wait()
			s.sendAt(time.Now().Add(time.Second))
			if <-s.signal; time.Since(began) != 61*time.Second {
				t.Errorf("%v: sent after %v", order, time.Since(began))
			}
		})
	}
}

// TestCancelBetweenExchanges cancels a call when no exchange is active: before it is sent, between two replicas, and
// before the second replica has it.
func TestCancelBetweenExchanges(t *testing.T) {
	for _, tt := range []struct {
		name      string
		at        int // the number of the request during which it is cancelled; 0: before the first
		sent      int
		cancelled int // at the second replica
	}{
		{"before it is sent", 0, 0, 0},
		{"at the first replica", 1, 1, 0},
		{"before the second replica has it", 2, 2, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := &scriptedLink{}, &scriptedLink{}
			f := replicas(manifest.Ext, a, b)[0]
			w := jsonrpc.NewWaiter()
			x := &jsonrpc.Exchange{Sink: w}
			cancelAt := func(n int) {
				if tt.at == n {
					f.CancelExchange(x)
				}
			}
			a.answer = func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) {
				cancelAt(1)
				return jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeExited, rpc.RanNo, "gone")}, true
			}
			b.answer = func(inner *jsonrpc.Exchange) (jsonrpc.Reply, bool) {
				cancelAt(2)
				return neverAnswer(inner)
			}
			cancelAt(0)
			f.HandleAsync(&rpc.Request{Method: "tools/say"}, x)
			select {
			case <-w.Done():
			default:
				t.Fatal("the cancellation is lost")
			}
			if _, err := w.Result(); !errors.Is(err, rpc.CodeCancelled) || len(a.sent)+len(b.sent) != tt.sent || b.cancelled != tt.cancelled {
				t.Errorf("it ended with %v; sent %q and %q, cancelled %d", err, a.sent, b.sent, b.cancelled)
			}
			f.CancelExchange(x) // a second cancellation has no effect
		})
	}
}

// TestCancelDuringMove cancels a call from another goroutine as soon as its second exchange is visible. The race detector
// reports any field that cancelling reads and that is written later.
func TestCancelDuringMove(t *testing.T) {
	a, b := &scriptedLink{}, &scriptedLink{answer: neverAnswer}
	f := replicas(manifest.Ext, a, b)[0]
	var last atomic.Pointer[jsonrpc.Exchange] // the exchange before the one to be cancelled
	a.answer = func(x *jsonrpc.Exchange) (jsonrpc.Reply, bool) {
		last.Store(x)
		return jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeExited, rpc.RanNo, "gone")}, true
	}
	w := jsonrpc.NewWaiter()
	x := &jsonrpc.Exchange{Sink: w}
	var wg sync.WaitGroup
	wg.Go(func() {
		for last.Load() == nil || x.Inner.Load() == last.Load() {
			runtime.Gosched()
		}
		f.CancelExchange(x)
	})
	f.HandleAsync(&rpc.Request{Method: "tools/say"}, x)
	wg.Wait()
	if _, err := w.Result(); !errors.Is(err, rpc.CodeCancelled) {
		t.Errorf("it ended with %v", err)
	}
}

// TestProbeWithoutResult: one probe of a half-open breaker is cancelled, and during another one the child exits. Neither
// changes the breaker's state or blocks the next probe.
func TestProbeWithoutResult(t *testing.T) {
	l := &scriptedLink{answer: neverAnswer}
	f := replicas(manifest.Ext, l)[0]
	f.breaker = openBreaker(t)
	f.breaker.HalfOpen()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.Handle(ctx, &rpc.Request{Method: "tools/say"}); !errors.Is(err, rpc.CodeCancelled) {
			t.Errorf("the first probe: %v", err)
		}
	})
	l.answer = failing(rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "gone"))
	if _, err := f.Handle(t.Context(), &rpc.Request{Method: "tools/say"}); !errors.Is(err, rpc.CodeExited) {
		t.Errorf("the second probe: %v", err)
	}
	l.answer = result("1")
	for n := range 2 {
		if _, err := f.Handle(t.Context(), &rpc.Request{Method: "tools/say"}); err != nil {
			t.Errorf("good probe %d: %v", n, err)
		}
	}
	if s, _ := f.breaker.State(); s != heartbeat.BreakerClosed || len(l.sent) != 4 {
		t.Errorf("the breaker is %s after %d calls", s, len(l.sent))
	}
}

// callSink is the sink of a call by a caller.
type callSink struct {
	jsonrpc.Sink
	began time.Time
}

func (callSink) SetTool(string)     {}
func (callSink) SetToolFailed()     {}
func (c callSink) Began() time.Time { return c.began }

// TestBusyAfterCancel: an HTTP server that does not notice a cancellation is busy with the call for as long as a call may
// take, but not with one that failed or that it never had.
func TestBusyAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			err  *rpc.Error
			busy bool
		}{
			{rpc.Errorf(rpc.CodeCancelled, rpc.RanMaybe, "the caller left"), true},
			{rpc.Errorf(rpc.CodeCancelled, rpc.RanNo, "the caller left before the request was sent"), false},
			{rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "late"), false},
			{rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "lost"), false},
		} {
			f := replicas(manifest.MCP, &scriptedLink{answer: failing(tt.err)})[0]
			f.limits.call = time.Minute
			x := &jsonrpc.Exchange{Sink: callSink{jsonrpc.NewWaiter(), time.Now()}}
			f.HandleAsync(&rpc.Request{Method: "tools/say", Params: json.RawMessage(`{}`)}, x)
			time.Sleep(59 * time.Second)
			if busy := f.inflight.Load() == 1; busy != tt.busy {
				t.Errorf("%v: busy after 59 s: %t", tt.err, busy)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if n := f.inflight.Load(); n != 0 {
				t.Errorf("%v: %d calls in flight after the longest one", tt.err, n)
			}
		}
	})
}
