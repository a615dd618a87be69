package registry

import (
	"fmt"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestInventedBridges: only its own report adds a bridge. Announcements with other names of bridges neither use up
// the limit of bridges nor cause pings.
func TestInventedBridges(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	pings, err := b.nc.SubscribeSync(prefix.Control("*"))
	if err != nil {
		t.Fatal(err)
	}
	e := b.ext("weather", "1.0.0", "n", "get")
	e.up()
	for n := range maxBridges + 10 {
		a := e.a
		a.Bridge = fmt.Sprint("invented", n)
		b.publish(prefix.Announce("weather"), a)
	}
	b.await("all are handled", func() bool { return b.status(r).Traffic.Announces == maxBridges+11 })
	if s := b.status(r); s.Bridges != 0 {
		t.Errorf("there are %d bridges", s.Bridges)
	}
	real := b.bridge("real", "r1")
	b.await("a new host is admitted", real.is(heartbeat.Ready))
	for {
		m, err := pings.NextMsg(time.Millisecond)
		if err != nil {
			break
		}
		if m.Subject != prefix.Control("real") {
			t.Errorf("pinged: %s", m.Subject)
		}
	}
}
