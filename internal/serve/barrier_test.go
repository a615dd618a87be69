package serve

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
)

// TestTakenUp has many callers wait at the same time, each for what arrived before its call.
func TestTakenUp(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	n := NewPublisher(nc, PublisherOptions{})
	<-n.takenUp() // with no subscription at all
	var taken atomic.Int64
	if _, err := nc.Subscribe("x", func(*nats.Msg) { taken.Add(1) }); err != nil {
		t.Fatal(err)
	}
	held, goOn := make(chan struct{}), make(chan struct{})
	if _, err := nc.Subscribe("hold", func(*nats.Msg) { close(held); <-goOn }); err != nil {
		t.Fatal(err)
	}
	nc.Publish("hold", nil)
	<-held
	early, late := n.takenUp(), n.takenUp() // the second comes behind a barrier that is under way
	select {
	case <-early:
		t.Error("one subscription is still busy")
	case <-late:
		t.Error("one subscription is still busy, and so is the barrier before")
	default:
	}
	close(goOn)
	<-early
	<-late
	var wg sync.WaitGroup
	var sent atomic.Int64
	for range 50 {
		wg.Go(func() { // ends by itself
			for range 20 {
				nc.Publish("x", nil)
				before := sent.Add(1)
				if err := nc.FlushTimeout(time.Minute); err != nil {
					t.Error(err)
					return
				}
				<-n.takenUp()
				if got := taken.Load(); got < before {
					t.Errorf("%d messages are taken up, and %d were there", got, before)
				}
			}
		})
	}
	wg.Wait()
	natstest.Eventually(t, "no barrier is left over", func() bool {
		n.barriers.mu.Lock()
		defer n.barriers.mu.Unlock()
		return !n.barriers.underWay && n.barriers.next == nil
	})
	nc.Close()
	<-n.takenUp() // of nothing
}

// TestTakenUpInMotion checks that no caller waits forever while subscriptions come and go, and when the connection is
// closed.
func TestTakenUpInMotion(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	n := NewPublisher(nc, PublisherOptions{})
	var waits atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { // ends with the connection
			for !nc.IsClosed() {
				sub, err := nc.Subscribe("x", func(*nats.Msg) {})
				if err != nil {
					continue // it has just been closed
				}
				nc.Publish("x", nil)
				done := n.takenUp()
				switch i % 3 {
				case 0:
					sub.Unsubscribe()
				case 1:
					sub.Drain()
				case 2:
					sub.AutoUnsubscribe(1)
				}
				select {
				case <-done:
					waits.Add(1)
				case <-time.After(time.Minute):
					t.Error("the barrier is lost")
					return
				}
				sub.Unsubscribe()
			}
		})
	}
	natstest.Eventually(t, "many have waited", func() bool { return waits.Load() > 1000 || t.Failed() })
	nc.Close()
	wg.Wait()
}
