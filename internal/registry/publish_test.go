package registry

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestFlushInterval: changes are collected for 100 ms, except those that have to be written at once.
func TestFlushInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, hold := newPublisher(), func(string) bool { return false }
		one, two := fleet.StateKey("one"), fleet.StateKey("two")
		take := func(want ...string) {
			t.Helper()
			if got := p.take(hold); !slices.Equal(got, want) {
				t.Fatalf("%v, want %v", got, want)
			}
		}
		start := time.Now()
		p.mark(one, false)
		take()
		<-p.timer.C
		p.fired()
		take(one)
		if took := time.Since(start); took != flushInterval {
			t.Errorf("collected for %v", took)
		}
		p.mark(one, false)
		p.mark(two, true)
		take(two)
		<-p.timer.C
		p.fired()
		take(one)
		take()
		p.mark(one, true)
		hold = func(string) bool { return true }
		take()
		hold = func(string) bool { return false }
		take(one)
		for range 25 { // 5 MB
			p.mark(one, true)
			take(one)
			p.charge(map[string][]byte{one: make([]byte, 200_000), two: make([]byte, 1000)})
		}
		p.mark(one, true)
		p.mark(fleet.SpecKey("one"), true) // it is held with the state
		p.mark(two, true)
		take(two)
		start = time.Now()
		for got := []string(nil); len(got) != 2; got = p.take(hold) {
			<-p.timer.C
			p.fired()
		}
		if took := time.Since(start); took != flushInterval {
			t.Errorf("the next 200,000 bytes were written after %v", took)
		}
		p.charge(map[string][]byte{one: make([]byte, 2_000_000)})
		p.mark(one, true)
		start = time.Now()
		for got := []string(nil); got == nil; got = p.take(hold) {
			<-p.timer.C
			p.fired()
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("after 2 MB more the next was written after %v", took)
		}
	})
}

// TestUpgradeOfMany: with the tools of a new version followers also receive an instance of that version.
func TestUpgradeOfMany(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		old := b.ext("weather", "1.0.0", "n1", "get")
		old.up()
		old.sendHeartbeats()
		b.await("it is up", b.is("weather", heartbeat.Ready))
		specs := make(chan *nats.Msg, 100)
		if _, err := b.nc.ChanSubscribe(prefix.CatalogEvents()+".spec.weather", specs); err != nil {
			t.Fatal(err)
		}
		b.flush(b.nc)
		newer := b.ext("weather", "2.0.0", "n2", "get", "set")
		newer.up()
		for m := range specs {
			if !bytes.Contains(m.Data, []byte(`"2.0.0"`)) {
				continue
			}
			if d := b.state("weather"); len(d.Instances) != 2 || d.Instances[1].State != heartbeat.Ready {
				t.Errorf("the spec shows a version without an instance: %+v", d.Instances)
			}
			return
		}
	})
}
