package registry

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// TestEventOfAnotherStream: an event that is in no snapshot, such as one of another server's stream, causes only a few scans.
// Then it is dropped, and the view is complete again.
func TestEventOfAnotherStream(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	before := b.status(r).Traffic.Scans
	m := nats.NewMsg(prefix.CatalogEvents() + "." + wire.KeyLease)
	m.Header.Set("Nats-Sequence", "1000000")
	m.Header.Set("Nats-Time-Stamp", time.Now().UTC().Format(time.RFC3339Nano))
	m.Data = []byte("{}")
	if err := b.nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	b.await("it is read again", func() bool { return b.status(r).Traffic.Scans > before })
	b.await("the registry is ready again", func() bool { return r.Ready(t.Context()) == nil })
	if n := b.status(r).Traffic.Scans - before; n > 10 {
		t.Errorf("%d scans", n)
	}
	b.ext("weather", "1.0.0", "n1", "today").up()
	b.await("the catalog is written", func() bool { s, ok := b.spec("weather"); return ok && len(s.Tools) == 1 })
}

// TestTwoLeaders: another registry that leads for long writes another stream. That is trouble; at a change of the leader it is
// not.
func TestTwoLeaders(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{Name: "mine"})
		b.leading(r)
		seq := 0
		others := func(role string, d time.Duration) { // fake time
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
				seq++
				b.publish(prefix.Heartbeat(registryID), fmt.Sprintf(
					`{"id":"registry","instance":"other","version":"1.0.0","seq":%d,"interval_ms":1000,"state":"ready","reason":"%s theirs"}`, seq, role))
			}
		}
		others(roleLeader, 15*time.Second)
		if s := b.status(r); s.JetStream != "ok" || len(s.Replicas) != 2 {
			t.Errorf("after 15 s: %+v", s)
		}
		others(roleStandby, 2*time.Second)
		others(roleLeader, 15*time.Second)
		if s := b.status(r); s.JetStream != "ok" {
			t.Errorf("after 15 s more: %q", s.JetStream)
		}
		others(roleLeader, 10*time.Second)
		const want = "theirs leads, too: it writes the JetStream of another server or account, such as a leaf node's; run all registries of a mesh on one JetStream"
		if s := b.status(r); s.JetStream != want || !s.Leading {
			t.Errorf("after 25 s: %+v", s)
		}
		time.Sleep(10 * time.Second) // fake time: it is lost
		if s := b.status(r); s.JetStream != "ok" {
			t.Errorf("without the other: %q", s.JetStream)
		}
	})
}
