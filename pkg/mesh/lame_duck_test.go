package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestLameDuckMoves tells the server of a service and of a client that it is to go, while calls are under way. No
// call is lost, and both are on the other server when theirs is gone.
//
// But for one: what the third caller's server had sent over the route when it was yet to hear that the service is
// gone from there. NATS drops that without a word, whenever a subscription ends in a cluster (docs/rough_edges.md).
func TestLameDuckMoves(t *testing.T) {
	servers := duckServers(t, 2)
	nc := duckConn(t, servers[0])
	serveOn(t, nc, echoBox())
	moved := make(chan struct{})
	nc.SetReconnectHandler(func(*nats.Conn) { close(moved) })
	// A busy machine might turn the two around, and the second would be as the third then.
	near := duckConn(t, servers[0], nats.LameDuckModeHandler(func(*nats.Conn) {
		select {
		case <-moved:
		case <-t.Context().Done():
		}
	}))
	var wg sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	for _, c := range []struct {
		*Client
		mayLose int
	}{
		{NewClient(near, ClientOptions{}), 0},
		{NewClient(nc, ClientOptions{}), 0},
		{NewClient(duckConn(t, servers[1]), ClientOptions{Timeout: 2 * time.Second}), 1},
	} {
		wg.Go(func() { // ends with end
			for n := 0; ctx.Err() == nil; n++ {
				var got json.RawMessage
				err := error(rpc.CodeUnavailable)
				// The client tries again for 210 ms. On a busy machine the service may take longer to come back.
				for began := time.Now(); errors.Is(err, rpc.CodeUnavailable) && time.Since(began) < 5*time.Second; {
					got, err = c.Call(context.WithoutCancel(ctx), "duck/echo", json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)))
				}
				if c.mayLose > 0 && errors.Is(err, rpc.CodeTimeout) {
					c.mayLose--
				} else if err != nil || string(got) != fmt.Sprintf(`{"n":%d}`, n) {
					t.Errorf("call %d: %s, %v", n, got, err)
					return
				}
			}
		})
	}
	servers[0].LameDuckShutdown() // returns when it is down
	end()
	wg.Wait()
	for _, c := range []*nats.Conn{nc, near} {
		if c.ConnectedServerName() != "n1" || c.Stats().Reconnects != 1 {
			t.Errorf("on %q after %d reconnects, want n1 and 1", c.ConnectedServerName(), c.Stats().Reconnects)
		}
	}
}

// TestPauseDrains pauses a service that is still handling a message, and reconnects: its subscription is removed before
// that, or the new server would deliver calls that nothing handles.
func TestPauseDrains(t *testing.T) {
	servers := duckServers(t, 2)
	nc := duckConn(t, servers[0])
	h := &stuck{taken: make(chan struct{}), goOn: make(chan struct{})}
	slot := serveOn(t, nc, h)
	client := NewClient(duckConn(t, servers[1]), ClientOptions{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { // ends with its answer
			if _, err := client.CallExt(t.Context(), "duck", "tools/first", nil); err != nil {
				t.Errorf("a call under way: %v", err)
			}
		})
	}
	<-h.taken
	s, before, subscriptions := slot.node.services()[0], nc.Stats().InMsgs, nc.NumSubscriptions()
	soonTrue(t, "the other call is there", func() bool { return nc.Stats().InMsgs > before || before > 1 })
	wg.Go(func() { // ends when the calls have ended
		resume := slot.node.pauseServices(time.Now().Add(10 * time.Second))
		if err := nc.ForceReconnect(); err != nil {
			t.Error(err)
		}
		soonTrue(t, "it is on the other server", func() bool { return nc.IsConnected() && nc.ConnectedServerName() == "n1" })
		resume()
	})
	soonTrue(t, "it is off the mesh", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.svc.isStopped() })
	if err := nc.FlushTimeout(10 * time.Second); err != nil { // the drain's own look comes before this, and finds the message
		t.Fatal(err)
	}
	close(h.goOn)
	wg.Wait()
	soonTrue(t, "what drained is gone", func() bool { return nc.NumSubscriptions() == subscriptions })
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := client.CallExt(ctx, "duck", "tools/next", nil)
		cancel()
		if err != nil {
			t.Fatal("a call was given to nobody:", err)
		}
	}
	if nc.ConnectedServerName() != "n1" {
		t.Errorf("on %q", nc.ConnectedServerName())
	}
}

// stuck is a jsonrpc.AsyncHandler that keeps the subscription's goroutine over its first call, as none should.
type stuck struct {
	once        sync.Once
	taken, goOn chan struct{}
}

func (h *stuck) Handle(context.Context, *rpc.Request) (json.RawMessage, error) {
	return nil, errors.New("not asked this way")
}

func (h *stuck) HandleAsync(r *rpc.Request, x *jsonrpc.Exchange) {
	h.once.Do(func() { close(h.taken); <-h.goOn })
	x.Sink.Deliver(x, jsonrpc.NewReply(json.RawMessage("{}"), nil))
}

// TestCannotResume: a service that cannot subscribe again after a move is failed instead of ready, and tries again until it
// can.
func TestCannotResume(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	slot := serveOn(t, nc, echoBox())
	slot.Update(func(a *Announce) { a.Version = "not a version" })
	slot.node.pauseServices(time.Now())()
	soonTrue(t, "it has failed", func() bool { s, _ := slot.State(); return s == heartbeat.Failed })
	s := slot.node.services()[0]
	if reason := s.listenAgain(t.Context(), 0); reason == "" {
		t.Error("no error, although it is not subscribed")
	}
	slot.Update(func(a *Announce) { a.Version = "1.0.0" })
	soonTrue(t, "it is ready", func() bool { s, _ := slot.State(); return s == heartbeat.Ready })
	if _, err := NewClient(nc, ClientOptions{}).Call(t.Context(), "duck/echo", nil); err != nil {
		t.Errorf("after it is ready: %v", err)
	}
}

// TestMicroSubscriptions checks the number that pauseServices uses.
func TestMicroSubscriptions(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	before := nc.NumSubscriptions()
	svc, err := NewNode(nc, NodeOptions{}).addMicro(Announce{ID: "duck", Version: "1.0.0", Instance: "i", SubjectPrefix: "ext"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := nc.NumSubscriptions() - before; n != microSubscriptions {
		t.Errorf("a micro service has %d subscriptions, not %d", n, microSubscriptions)
	}
	if err := svc.stop(); err != nil {
		t.Error(err)
	}
	soonTrue(t, "it has none", func() bool { return nc.NumSubscriptions() == before })
}
