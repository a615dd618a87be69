package serve

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestPauseDrains pauses a service that is still handling a message, and reconnects: its subscription is removed before
// that, or the new server would deliver calls that nothing handles.
func TestPauseDrains(t *testing.T) {
	servers := duckServers(t, 2)
	nc := duckConn(t, servers[0])
	h := &stuck{taken: make(chan struct{}), goOn: make(chan struct{})}
	inst := serveOn(t, nc, h)
	const all = microSubscriptions + 4 // of the service: 2; of the publisher: 1; of the instance: 1
	natstest.Eventually(t, "all subscriptions are there", func() bool { return nc.NumSubscriptions() == all })
	caller := duckConn(t, servers[1])
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { // ends with its answer
			request(t, caller, "tools/first")
		})
	}
	<-h.taken
	s, before := inst.pub.streams.list()[0], nc.Stats().InMsgs
	natstest.Eventually(t, "the other call is there", func() bool { return nc.Stats().InMsgs > before || before > 1 })
	wg.Go(func() { // ends when the calls have ended
		resume := inst.pub.pauseServices(time.Now().Add(10 * time.Second))
		if err := nc.ForceReconnect(); err != nil {
			t.Error(err)
		}
		natstest.Eventually(t, "it is on the other server", func() bool { return nc.IsConnected() && nc.ConnectedServerName() == "n1" })
		resume()
	})
	natstest.Eventually(t, "it is off the mesh", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.svc.isStopped() })
	if err := nc.FlushTimeout(time.Minute); err != nil { // the drain's own look comes before this, and finds the message
		t.Fatal(err)
	}
	close(h.goOn)
	wg.Wait()
	natstest.Eventually(t, "what drained is gone", func() bool { return nc.NumSubscriptions() == all })
	for range 50 {
		request(t, caller, "tools/next")
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
	inst := serveOn(t, nc, echo)
	inst.Update(func(a *wire.Announce) { a.Version = "not a version" })
	inst.pub.pauseServices(time.Now())()
	natstest.Eventually(t, "it has failed", func() bool { s, _ := inst.State(); return s == heartbeat.Failed })
	s := inst.pub.streams.list()[0]
	if reason := s.listenAgain(t.Context(), 0); reason == "" {
		t.Error("no error, although it is not subscribed")
	}
	inst.Update(func(a *wire.Announce) { a.Version = "1.0.0" })
	natstest.Eventually(t, "it is ready", func() bool { s, _ := inst.State(); return s == heartbeat.Ready })
	request(t, nc, "echo")
}

// TestMicroSubscriptions checks the number that pauseServices uses.
func TestMicroSubscriptions(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	before := nc.NumSubscriptions()
	svc, err := NewPublisher(nc, PublisherOptions{}).addMicro(wire.Announce{ID: "duck", Version: "1.0.0", Instance: "i", SubjectPrefix: "ext"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := nc.NumSubscriptions() - before; n != microSubscriptions {
		t.Errorf("a micro service has %d subscriptions, not %d", n, microSubscriptions)
	}
	if err := svc.stop(); err != nil {
		t.Error(err)
	}
	natstest.Eventually(t, "it has none", func() bool { return nc.NumSubscriptions() == before })
}
