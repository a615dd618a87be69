package mesh_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestConcurrentUpdates: after concurrent changes of an instance's announcement, the last one is published.
func TestConcurrentUpdates(t *testing.T) {
	connect := startServer(t)
	nc := connect()
	heard, err := nc.SubscribeSync("ext.registry.announce.weather")
	if err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	served := connect()
	slot, _ := serveWeather(t, served, weather, rpc.HandlerFunc(echo), serve.Options{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 50 {
				slot.Update(func(a *wire.Announce) { a.HandshakeHash = fmt.Sprintf("%d-%d", i, j) })
				if slot.ID() != "weather" || slot.Instance() == "" {
					t.Error("it is another")
				}
			}
		})
	}
	wg.Wait()
	var last wire.Announce
	for last.HandshakeHash != slot.Announced().HandshakeHash {
		m, err := heard.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("announced last: %+v, and it should be %+v: %v", last, slot.Announced(), err)
		}
		if err := json.Unmarshal(m.Data, &last); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFloodOfAnnounceRequests checks that a thousand small messages do not become a thousand announcements of
// each slot, and that the last one of them is answered.
func TestFloodOfAnnounceRequests(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	serveWeather(t, connect(), weather, rpc.HandlerFunc(echo), serve.Options{})
	nc := connect()
	heard := make(chan *nats.Msg, 4096)
	if _, err := nc.ChanSubscribe("ext.registry.announce.weather", heard); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 1000 {
		nc.Publish("ext.registry.request", nil)
	}
	nc.Flush()
	n := 0
	for quiet := time.After(10 * time.Second); quiet != nil; {
		select {
		case <-heard:
			if n++; n == 1 { // for the others this much will do
				quiet = time.After(time.Second)
			}
		case <-quiet:
			quiet = nil
		}
	}
	if n == 0 || n > 2+int(time.Since(began)/(200*time.Millisecond)) {
		t.Errorf("1000 requests to announce were answered %d times", n)
	}
}
