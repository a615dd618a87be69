package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// holding serves replicas of weather with a handler that keeps its calls in flight until their contexts end, or until release is closed.
func holding(t *testing.T, nc *nats.Conn, replicas int, opt serve.Options) (inflight func() int64, release chan struct{}) {
	t.Helper()
	var n atomic.Int64
	release = make(chan struct{})
	h := rpc.HandlerFunc(func(ctx context.Context, _ *rpc.Request) (json.RawMessage, error) {
		n.Add(1)
		defer n.Add(-1)
		select {
		case <-release:
			return json.RawMessage(`"held"`), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	node := serve.NewPublisher(nc, serve.PublisherOptions{})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(ctx) }) // these end with ctx
	t.Cleanup(func() { stop(); wg.Wait() })
	for range replicas {
		inst := node.Join(wire.Announce{ID: "weather", Version: "1.0.0"})
		ready, o := make(chan struct{}), opt
		o.OnReady = func() { close(ready) }
		wg.Go(func() {
			if err := inst.Serve(ctx, h, o); err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
		<-ready
	}
	return n.Load, release
}

// held is a call of an hour.
func held(reply string) *nats.Msg {
	return &nats.Msg{Subject: "ext.weather.rpc", Reply: reply, Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/x"}`),
		Header: nats.Header{wire.HeaderTimeout: {"3600000"}}}
}

// heldStream is held for a caller that takes frames.
func heldStream(reply string) *nats.Msg {
	m := held(reply)
	m.Header.Set(wire.HeaderStream, "1")
	return m
}

// start runs a server and returns what connects to it. Nothing of either is left after the test.
func start(t *testing.T) (connect func(...nats.Option) *nats.Conn) {
	t.Helper()
	others := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if !t.Failed() {
			leaks.None(t, others)
		}
	})
	return natstest.Start(t, nil).Connect
}

// TestCallerOfReplicasGone: the replicas of a bridge share a connection, on which the server reports an absent caller to one of
// them only.
func TestCallerOfReplicasGone(t *testing.T) {
	connect := start(t)
	inflight, _ := holding(t, connect(), 3, serve.Options{MaxInflight: 100})
	goes := connect()
	prefix := goes.NewInbox()
	if _, err := goes.SubscribeSync(prefix + ".*"); err != nil {
		t.Fatal(err)
	}
	for n := range 60 {
		if err := goes.PublishMsg(heldStream(fmt.Sprintf("%s.%d", prefix, n))); err != nil {
			t.Fatal(err)
		}
	}
	natstest.Eventually(t, "all calls are in flight", func() bool { return inflight() == 60 })
	goes.Close()
	natstest.Eventually(t, "they have ended", func() bool { return inflight() == 0 })
}

// TestShareOfOneCaller gives no caller more than half of the calls that an extension takes, and gives the share back.
func TestShareOfOneCaller(t *testing.T) {
	connect := start(t)
	inflight, release := holding(t, connect(), 1, serve.Options{MaxInflight: 5})
	nc := connect()
	answers, err := nc.SubscribeSync("_INBOX.>")
	if err != nil {
		t.Fatal(err)
	}
	next := func() *nats.Msg {
		t.Helper()
		m, err := answers.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	calls := func(replies ...string) {
		t.Helper()
		for _, reply := range replies {
			if err := nc.PublishMsg(held(reply)); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls("_INBOX.bob.c1.1", "_INBOX.bob.c1.2", "_INBOX.bob.c2.1")
	natstest.Eventually(t, "half of the calls, rounded up, are in flight", func() bool { return inflight() == 3 })
	calls("_INBOX.bob.c2.2")
	if m := next(); m.Subject != "_INBOX.bob.c2.2" || !strings.Contains(string(m.Data), `"kind":"overloaded","ran":"no"`) {
		t.Fatalf("a fourth call of bob: %s %s", m.Subject, m.Data)
	}
	calls("_INBOX.eve.c1.1", "_INBOX.eve.c1.2")
	natstest.Eventually(t, "eve's calls are in flight", func() bool { return inflight() == 5 })
	close(release)
	for range 5 {
		if m := next(); !strings.Contains(string(m.Data), `"held"`) {
			t.Fatalf("%s: %s", m.Subject, m.Data)
		}
	}
	for n := range 1000 { // each call frees its share with its answer
		calls(fmt.Sprintf("_INBOX.bob.c1.%d", n), fmt.Sprintf("_INBOX.bob.c2.%d", n), fmt.Sprintf("_INBOX.bob.c3.%d", n))
		for range 3 {
			if m := next(); !strings.Contains(string(m.Data), `"held"`) {
				t.Fatalf("call %d, %s: %s", n, m.Subject, m.Data)
			}
		}
	}
}
