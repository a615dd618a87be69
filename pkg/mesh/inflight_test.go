package mesh_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestPlaceIsFreeWithTheAnswer calls again with each answer, where one call may be in flight: its own answer must not
// stand in the caller's way.
func TestPlaceIsFreeWithTheAnswer(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	h := rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		switch r.Method {
		case "initialize":
			return json.RawMessage(`{"server_version":"1","tools":[],"hooks":[]}`), nil
		case "tools/fail":
			return nil, rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "it failed")
		}
		return json.RawMessage(`{}`), nil
	})
	serveWeather(t, connect(), weather, h, serve.Options{MaxInflight: 1})
	nc := connect()
	for n := range 3000 {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/` + []string{"x", "fail"}[n%2] + `"}`
		m, err := nc.Request("ext.weather.rpc", []byte(body), time.Minute)
		if err != nil || strings.Contains(string(m.Data), "overloaded") {
			t.Fatalf("call %d: %s, %v", n, m.Data, err)
		}
	}
}

// TestPlaceIsFreeWithTheStreamsEnd is the same for answers in chunks, and for those that there is no room for.
func TestPlaceIsFreeWithTheStreamsEnd(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	big := json.RawMessage(`"` + strings.Repeat("0123456789abcdef", 2<<20/16) + `"`)
	h := rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) { return big, nil })
	serveWeather(t, connect(), weather, h, serve.Options{MaxInflight: 1})
	nc := connect()
	inbox := nc.NewInbox()
	frames, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 300 {
		m := &nats.Msg{Subject: "ext.weather.rpc", Reply: inbox, Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/x"}`)}
		want := ""
		if n%2 == 0 {
			m.Header, want = nats.Header{wire.HeaderStream: {"1"}}, "end"
		}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		kind := "none yet"
		for kind != want {
			m, err := frames.NextMsg(time.Minute)
			if err != nil {
				t.Fatalf("call %d: %v", n, err)
			}
			if strings.Contains(string(m.Data), `"overloaded"`) {
				t.Fatalf("call %d: %s", n, m.Data)
			}
			if kind = m.Header.Get(wire.HeaderFrame); kind == wire.FrameChunk && m.Reply != "" {
				nc.Publish(m.Reply, nil)
			}
		}
	}
}

// TestReserve refuses the requests that there is no memory for, and takes them again when others have ended.
func TestReserve(t *testing.T) {
	connect := startServer(t)
	var used atomic.Int64
	node := serve.NewPublisher(connect(), serve.PublisherOptions{Reserve: func(n int64) bool {
		if used.Add(n) > 1000 && n > 0 {
			used.Add(-n)
			return false
		}
		return true
	}})
	release := make(chan struct{})
	h := rpc.HandlerFunc(func(ctx context.Context, _ *rpc.Request) (json.RawMessage, error) {
		<-release
		return json.RawMessage(`{}`), nil
	})
	slot := node.Join(weather)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan struct{})
	ready := make(chan struct{})
	go func() { // ends with ctx
		defer close(served)
		_ = slot.Serve(ctx, h, serve.Options{OnReady: func() { close(ready) }})
	}()
	defer func() { stop(); <-served }()
	<-ready
	nc := connect()
	inbox := nc.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/x","params":{"x":"` + strings.Repeat("x", 340) + `"}}`)
	next := func() string {
		t.Helper()
		m, err := answers.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return string(m.Data)
	}
	for range 3 { // two are as many as there is memory for
		if err := nc.PublishRequest("ext.weather.rpc", inbox, body); err != nil {
			t.Fatal(err)
		}
	}
	if got := next(); !strings.Contains(got, `"kind":"overloaded","ran":"no"`) {
		t.Fatalf("the third request: %s", got)
	}
	close(release)
	for range 2 {
		if got := next(); !strings.Contains(got, `"result":{}`) {
			t.Fatalf("a request that was taken: %s", got)
		}
	}
	if err := nc.PublishRequest("ext.weather.rpc", inbox, body); err != nil {
		t.Fatal(err)
	}
	if got := next(); !strings.Contains(got, `"result":{}`) {
		t.Fatalf("after the others: %s", got)
	}
}

// TestReserveForAnswers: an answer in chunks counts until the caller has it. One that there is no memory for is refused.
func TestReserveForAnswers(t *testing.T) {
	connect := startServer(t)
	var used atomic.Int64
	node := serve.NewPublisher(connect(), serve.PublisherOptions{Reserve: func(n int64) bool {
		if used.Add(n) > 16<<20 && n > 0 {
			used.Add(-n)
			return false
		}
		return true
	}})
	big := json.RawMessage(`"` + strings.Repeat("x", 9<<20) + `"`)
	h := rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) { return big, nil })
	slot := node.Join(weather)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(ctx) }) // these two end with ctx
	ready := make(chan struct{})
	wg.Go(func() { _ = slot.Serve(ctx, h, serve.Options{OnReady: func() { close(ready) }}) })
	defer func() { stop(); wg.Wait() }()
	<-ready
	nc := connect()
	call := func() *nats.Subscription {
		t.Helper()
		frames, err := nc.SubscribeSync(nc.NewInbox())
		if err == nil {
			m := request(frames.Subject)
			m.Header.Set(wire.HeaderStream, "1")
			err = nc.PublishMsg(m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return frames
	}
	next := func(frames *nats.Subscription) *nats.Msg {
		t.Helper()
		for {
			m, err := frames.NextMsg(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if !isWaiting(m) {
				return m
			}
		}
	}
	// read reads the rest of an answer, and acknowledges its chunks.
	read := func(frames *nats.Subscription, m *nats.Msg) {
		t.Helper()
		for ; m.Header.Get(wire.HeaderFrame) != "end"; m = next(frames) {
			if m.Reply == "" {
				continue
			}
			if err := nc.Publish(m.Reply, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := call()
	chunk := next(first) // the answer waits for an acknowledgement
	if m := next(call()); !strings.Contains(string(m.Data), `"kind":"overloaded"`) {
		t.Errorf("a second answer: %.200s", m.Data)
	}
	read(first, chunk)
	if n := used.Load(); n != 0 {
		t.Errorf("%d bytes are taken after the last answer", n)
	}
	third := call()
	chunk = next(third)
	if chunk.Header.Get(wire.HeaderFrame) != "chunk" {
		t.Fatalf("an answer after that: %.200s", chunk.Data)
	}
	read(third, chunk)
}

// request is a call of weather by hand.
func request(reply string) *nats.Msg {
	return &nats.Msg{Subject: "ext.weather.rpc", Reply: reply, Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/x"}`),
		Header: nats.Header{wire.HeaderTimeout: {"3600000"}}}
}
