package registry

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
)

// TestEventOfAnotherStream: events that are in no snapshot, such as those of another server's stream, cause only a few scans.
// Then they are dropped, and the view is complete again.
func TestEventOfAnotherStream(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	before := b.status(r).Traffic.Scans
	m := nats.NewMsg(prefix.CatalogEvents() + "." + wire.KeyLease)
	m.Header.Set("Nats-Time-Stamp", time.Now().UTC().Format(time.RFC3339Nano))
	m.Data = []byte("{}")
	send := func(seq int) {
		m.Header.Set("Nats-Sequence", strconv.Itoa(seq))
		if err := b.nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	send(1_000_000)
	b.await("it is read again", func() bool { return b.status(r).Traffic.Scans > before })
	b.await("the registry is ready again", func() bool { return r.Ready(t.Context()) == nil })
	for n := range 10 {
		scans := b.status(r).Traffic.Scans
		send(1_000_001 + n)
		b.await("it is read again", func() bool { return b.status(r).Traffic.Scans > scans })
	}
	b.await("the registry is ready again", func() bool { return r.Ready(t.Context()) == nil })
	if n := b.status(r).Traffic.Scans - before; n > 10+catalog.BehindTries {
		t.Errorf("%d scans", n)
	}
	b.ext("weather", "1.0.0", "n1", "today").up()
	b.await("the catalog is written", func() bool { s, ok := b.spec("weather"); return ok && len(s.Tools) == 1 })
}
