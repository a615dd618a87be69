package registry

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestHeldWithoutView: a state in the catalog that this leader has not restored yet is not deleted while the view has
// a gap.
func TestHeldWithoutView(t *testing.T) {
	l := largeLoop(0)
	known, other := stateKey("known"), "host.other"
	l.view.records = map[string]record{known: {seq: 1, value: []byte("{}")}}
	l.unrestored["known"] = true
	l.pub.mark(known, true)
	l.pub.mark(other, true)
	l.pub.due = true
	if got := l.pub.take(l.held); !slices.Equal(got, []string{other}) {
		t.Errorf("written without a view: %v", got)
	}
	l.view.synced, l.pub.due = true, true
	if got := l.pub.take(l.held); !slices.Equal(got, []string{known}) {
		t.Errorf("written with a view: %v", got)
	}
}

// TestFlushInterval: changes are collected for 100 ms, except those that have to be written at once.
func TestFlushInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := largeLoop(0)
		one, two := stateKey("one"), stateKey("two")
		take := func(want ...string) {
			t.Helper()
			if got := l.pub.take(l.held); !slices.Equal(got, want) {
				t.Fatalf("%v, want %v", got, want)
			}
		}
		start := time.Now()
		l.pub.mark(one, false)
		take()
		<-l.pub.timer.C
		l.pub.fired()
		take(one)
		if took := time.Since(start); took != flushInterval {
			t.Errorf("collected for %v", took)
		}
		l.pub.mark(one, false)
		l.pub.mark(two, true)
		take(two)
		<-l.pub.timer.C
		l.pub.fired()
		take(one)
		take()
		ready, lost := heartbeat.Ready, heartbeat.Lost
		l.changed(liveness.Change{Kind: liveness.Moved, ID: "two", Instance: "n", From: ready, To: lost, WasBest: ready, Best: lost})
		take()
		l.changed(liveness.Change{Kind: liveness.Moved, ID: "two", Instance: "n", From: lost, To: ready, WasBest: lost, Best: ready})
		take(two)
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
