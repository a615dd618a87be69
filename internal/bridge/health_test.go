package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// fakeLink responds to pings with the result of answer, and counts them.
type fakeLink struct {
	answer func(ctx context.Context) error
	pings  atomic.Int64
}

func (f *fakeLink) Call(ctx context.Context, method string, _ json.RawMessage) (json.RawMessage, error) {
	f.pings.Add(1)
	return nil, f.answer(ctx)
}
func (f *fakeLink) Start(*jsonrpc.Exchange)                 {}
func (f *fakeLink) Cancel(*jsonrpc.Exchange) (uint64, bool) { return 0, false }
func (f *fakeLink) Notify(string, json.RawMessage) error    { return nil }
func (f *fakeLink) Run(context.Context) error               { return nil }

func testForwarder(l link) *forwarder {
	f := &forwarder{conn: l, breaker: breaker.New("b", breaker.Settings{}), limits: limits{maxResult: 1 << 20},
		remote: true, relist: newSignal(), check: dueSignal{signal: newSignal()}}
	f.handshake.Store(&handshake{dialect: manifest.Ext})
	return f
}

// unresponsive is a server that accepts requests and does not respond.
func unresponsive(ctx context.Context) error {
	<-ctx.Done()
	return rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "no answer to ping in time")
}

func TestWatchHealth(t *testing.T) {
	var once, lost, limited, busy, proxied atomic.Bool
	first := func(done *atomic.Bool, then error) func(context.Context) error {
		return func(context.Context) error {
			if done.CompareAndSwap(false, true) {
				return nil
			}
			return then
		}
	}
	broken := rpc.NewError(rpc.CodeInternal, rpc.Details{Status: "500 Internal Server Error"}, "500")
	refused := rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "connection refused")
	for _, tt := range []struct {
		name     string
		answer   func(ctx context.Context) error
		inflight int64
		checkNow bool
		ends     time.Duration // 0: not within a minute
	}{
		{name: "well", answer: func(context.Context) error { return nil }},
		{name: "does not implement ping", answer: func(context.Context) error { return &rpc.Error{Code: rpc.CodeMethodNotFound, Message: "what?"} }},
		{name: "busy", answer: unresponsive, inflight: 1},
		{name: "rate-limited", answer: func(context.Context) error { return rpc.Errorf(rpc.CodeOverloaded, rpc.RanNo, "429") }},
		{name: "responds with 500 to ping only", answer: func(context.Context) error { return broken }},
		{name: "responds with 404 to ping only", answer: func(context.Context) error {
			return rpc.NewError(rpc.CodeUnavailable, rpc.Details{Ran: rpc.RanNo, Status: "404 Not Found"}, "404")
		}},
		{name: "breaks", answer: first(&once, broken), ends: 3 * pingEvery},
		{name: "reports a lost session as its own error", answer: first(&lost, &rpc.Error{Code: rpc.CodeInvalidRequest, Message: "no session"}), ends: 3 * pingEvery},
		{name: "busy later", answer: first(&busy, &rpc.Error{Code: -32000, Message: "busy"})},
		{name: "rate-limited later", answer: first(&limited, rpc.Errorf(rpc.CodeOverloaded, rpc.RanNo, "429"))},
		{name: "a call failed, but it responds", answer: func(context.Context) error { return nil }, checkNow: true},
		{name: "gone", answer: func(context.Context) error { return refused }, ends: 2 * pingEvery},
		{name: "gone, and a call failed", answer: func(context.Context) error { return refused }, checkNow: true, ends: time.Nanosecond},
		{name: "a proxy answers for one of its servers", checkNow: true, answer: func(context.Context) error {
			if proxied.CompareAndSwap(false, true) {
				return rpc.NewError(rpc.CodeUnavailable, rpc.Details{Status: "502 Bad Gateway"}, "502")
			}
			return nil
		}},
		{name: "hung", answer: unresponsive, ends: 2*pingEvery + pingTimeout},
		{name: "hung, and a call failed", answer: unresponsive, checkNow: true, ends: pingTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := testForwarder(&fakeLink{answer: tt.answer})
				f.inflight.Store(tt.inflight)
				if tt.checkNow {
					f.check.send()
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				err := (&run{inst: &instance{}, f: f}).watchHealth(ctx)
				took := time.Since(began)
				if tt.ends == 0 && err != nil || tt.ends > 0 && (err == nil || took > tt.ends) {
					t.Errorf("after %s: %v", took, err)
				}
			})
		})
	}
}

// TestSlowPings: pings have the time that initialize took, twice, and cost a server that starts a process for each request a
// tenth of its time. Its lists are read again all the same.
func TestSlowPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const start = 4 * time.Second
		l := &fakeLink{answer: func(ctx context.Context) error {
			if !pause.For(ctx, start) {
				return unresponsive(ctx)
			}
			return nil
		}}
		f := testForwarder(l)
		f.handshake.Store(&handshake{took: start})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		relists := 0
		stop := f.relist.start(ctx, func(context.Context) { relists++ })
		time.AfterFunc(time.Minute, f.check.send) // a call failed: one more
		err := (&run{inst: &instance{}, f: f}).watchHealth(ctx)
		if stop(); err != nil || l.pings.Load() < 12 || l.pings.Load() > 16 || relists < 6 {
			t.Errorf("%d pings in ten minutes, %d readings of the lists, %v", l.pings.Load(), relists, err)
		}
	})
}

// TestRateLimit: a server that asked for no requests for some time gets no ping meanwhile.
func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLink{answer: func(context.Context) error {
			return rpc.NewError(rpc.CodeOverloaded, rpc.Details{RetryAfterMS: 20_000, Status: "429 Too Many Requests"}, "429")
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := (&run{inst: &instance{}, f: testForwarder(l)}).watchHealth(ctx); err != nil || l.pings.Load() != 3 {
			t.Errorf("%d pings in a minute, %v", l.pings.Load(), err)
		}
	})
}

// TestListsAgain: the lists of a server that responds are read again every minute.
func TestListsAgain(t *testing.T) {
	for _, dialect := range []manifest.Dialect{manifest.MCP, manifest.Ext} {
		synctest.Test(t, func(t *testing.T) {
			f := testForwarder(&fakeLink{answer: func(context.Context) error { return nil }})
			f.handshake.Store(&handshake{dialect: dialect})
			ctx, cancel := context.WithTimeout(t.Context(), 61*time.Second)
			defer cancel()
			if err := (&run{inst: &instance{}, f: f}).watchHealth(ctx); err != nil || len(f.relist) == 0 {
				t.Errorf("%s: %v, %d readings", dialect, err, len(f.relist))
			}
		})
	}
}

// initializing is a server that answers each initialize with the next of its answers.
type initializing struct {
	fakeLink
	answers []string
}

func (l *initializing) Call(_ context.Context, method string, _ json.RawMessage) (json.RawMessage, error) {
	if method != "initialize" {
		return nil, errors.New(method)
	}
	answer := l.answers[0]
	l.answers = l.answers[1:]
	return json.RawMessage(answer), nil
}

// TestNativeServerAgain: the tools and hooks of a native HTTP server that was replaced are those of its new answer to initialize.
func TestNativeServerAgain(t *testing.T) {
	l := &initializing{answers: []string{`{"tools":[{"name":"new"}],"hooks":["before_tool_call"]}`, `{"protocolVersion":"2025-11-25","capabilities":{}}`}}
	f := testForwarder(l)
	var ended error
	r := &run{inst: &instance{workload: &workload{}, log: discard}, f: f, end: func(err error) { ended = err }}
	hs, err := r.readNativeServer(t.Context())
	if err != nil || !hs.names["new"] || !slices.Equal(hs.hooks, []string{"before_tool_call"}) || ended != nil {
		t.Errorf("%+v %v %v", hs, err, ended)
	}
	if _, err = r.readNativeServer(t.Context()); err == nil || ended == nil {
		t.Errorf("MCP: %v, %v", err, ended)
	}
}

func TestCheckHang(t *testing.T) {
	const limit = 5 * time.Second
	for _, tt := range []struct {
		name  string
		child func(c net.Conn)
		hangs bool
		busy  bool // with an earlier call, which is within its time
	}{
		{"answers pings", func(c net.Conn) { jsonrpc.NewConn(c, c, jsonrpc.Options{}).Run(context.Background()) }, false, false},
		{"does not implement ping", func(c net.Conn) {
			jsonrpc.Serve(context.Background(), c, c, rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) {
				return nil, rpc.CodeMethodNotFound
			}))
		}, false, false},
		{"writes something else", func(c net.Conn) {
			go c.Write([]byte("still working\n"))
			for b := make([]byte, 1024); ; {
				if _, err := c.Read(b); err != nil {
					return
				}
			}
		}, false, false},
		{"reads, and writes nothing", func(c net.Conn) {
			for b := make([]byte, 1024); ; {
				if _, err := c.Read(b); err != nil {
					return
				}
			}
		}, true, false},
		{"does not read", func(net.Conn) {}, true, false},
		{"handles one call at a time", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				var wg sync.WaitGroup
				conn := jsonrpc.NewConn(ours, ours, jsonrpc.Options{})
				wg.Go(func() { conn.Run(t.Context()) })
				f := testForwarder(conn)
				f.remote = false
				calling, giveUp := context.WithCancel(t.Context())
				if tt.busy {
					wg.Go(func() { _, _ = conn.Call(calling, "x", nil) })
					synctest.Wait()
				}
				f.check.send()
				time.AfterFunc(time.Second, func() { wg.Go(func() { tt.child(theirs) }) })
				began := time.Now()
				var after atomic.Int64 // nanoseconds
				r := &run{inst: &instance{workload: &workload{limits: limits{hang: limit}}}, f: f, end: func(err error) {
					if after.Store(int64(time.Since(began))); !errors.Is(err, errHung) {
						t.Error(err)
					}
				}}
				stop := r.startHealthCheck(t.Context())
				time.Sleep(2*limit + time.Second)
				hung := time.Duration(after.Load())
				if giveUp(); tt.busy { // now it hangs, although a later call waits
					wg.Go(func() { _, _ = conn.Call(t.Context(), "y", nil) })
					time.Sleep(2 * limit)
					if after.Load() == 0 {
						t.Error("not given up after the end of the earlier call")
					}
				}
				stop()
				if tt.hangs != (hung > 0) || tt.hangs && hung != limit {
					t.Errorf("given up after %s", hung)
				}
				ours.Close()
				theirs.Close()
				wg.Wait()
			})
		})
	}
}

// TestRelistIsCoalesced: the tools of a child that announces changes again and again are read only a few times.
func TestRelistIsCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLink{answer: func(context.Context) error { return errors.New("not now") }}
		f := testForwarder(l)
		f.handshake.Store(&handshake{raw: json.RawMessage(`{}`)})
		r := &run{inst: &instance{workload: &workload{}, log: discard}, f: f}
		stop := f.relist.start(t.Context(), r.relist)
		for range 1000 { // a burst
			f.relist.send()
		}
		time.Sleep(time.Second)
		if n := l.pings.Load(); n != 1 {
			t.Errorf("after a burst they were read %d times", n)
		}
		for range 100 { // without a pause
			f.relist.send()
			time.Sleep(10 * time.Millisecond)
		}
		if n := l.pings.Load(); n < 2 || n > 4 {
			t.Errorf("in a second of announcements they were read %d times", n-1)
		}
		stop()
	})
}

var discard = slog.New(slog.DiscardHandler)
