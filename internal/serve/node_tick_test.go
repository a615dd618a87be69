package serve

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
)

// TestNodeTicksWhenItMust has a Node sleep that has nothing to do, and wake for whatever a tick has to see to.
func TestNodeTicksWhenItMust(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	n := NewPublisher(nc, PublisherOptions{})
	slot := n.Join(wire.Announce{ID: "x", Version: "1.0.0"})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.Run(ctx) }) // ends with cancel
	defer wg.Wait()
	defer cancel()
	idle := func() bool { return !n.ticking.Load() }
	natstest.Eventually(t, "it listens", func() bool { return nc.NumSubscriptions() > 0 })
	natstest.Eventually(t, "it sleeps", idle)

	heard, err := nc.SubscribeSync(n.opt.Prefix.Announce("x"))
	if err != nil {
		t.Fatal(err)
	}
	slot.Enter()
	defer slot.Leave(nil)
	for range 2 { // the second comes too soon, or is answered at once where the test is slow
		nc.Publish(n.opt.Prefix.AnnounceRequest(), nil)
	}
	for i := range 3 {
		if _, err := heard.NextMsg(10 * time.Second); err != nil {
			t.Fatalf("announcement %d: %v", i, err)
		}
	}
	natstest.Eventually(t, "it sleeps again", idle)

	n.openStream()
	natstest.Eventually(t, "it ticks for a stream", n.ticking.Load)
	n.tick(time.Now()) // of nobody's
	n.closeStream()
	natstest.Eventually(t, "it sleeps without one", idle)

	svc, err := n.addMicro(wire.Announce{ID: "x", Version: "1.0.0", SubjectPrefix: "ext", Instance: "i"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock() // as stop does without a connection
	n.retired = append(n.retired, svc)
	n.mu.Unlock()
	n.startTick()
	natstest.Eventually(t, "it has stopped what was retired", svc.isStopped)
	natstest.Eventually(t, "it sleeps in the end", idle)
}

// TestNodeReadsNoClosedConnection has the connection closed before read listens for that: nobody tells it any more.
func TestNodeReadsNoClosedConnection(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := NewPublisher(nc, PublisherOptions{}).read(ctx); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("read returned %v", err)
	}
}
