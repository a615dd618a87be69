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

// TestUpdatesUnderWay changes what a slot announces while it answers calls, and looks at what the mesh hears
// last: it is what the slot says of itself.
func TestUpdatesUnderWay(t *testing.T) {
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
	served.Flush()
	nc.Flush()
	var last *nats.Msg
	for n, _, _ := heard.Pending(); n > 0; n, _, _ = heard.Pending() {
		if last, err = heard.NextMsg(time.Second); err != nil {
			t.Fatal(err)
		}
	}
	var a wire.Announce
	if err := json.Unmarshal(last.Data, &a); err != nil || a.HandshakeHash != slot.Announced().HandshakeHash {
		t.Errorf("heard last: %s, %v; it announces %q", last.Data, err, slot.Announced().HandshakeHash)
	}
}

// TestFloodOfAnnounceRequests checks that a thousand small messages do not become a thousand announcements of
// each slot, and that the last one of them is answered.
func TestFloodOfAnnounceRequests(t *testing.T) {
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
