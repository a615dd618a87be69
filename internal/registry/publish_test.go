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
	if got := l.pub.take(l.held, l.throttledFor); !slices.Equal(got, []string{other}) {
		t.Errorf("written without a view: %v", got)
	}
	l.view.synced = true
	if got := l.pub.take(l.held, l.throttledFor); !slices.Equal(got, []string{known}) {
		t.Errorf("written with a view: %v", got)
	}
}

// TestLongStatesAreThrottled: the state of a thousand instances is written at a limited rate, except for the change
// that they take calls, and does not delay other keys.
func TestLongStatesAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := largeLoop(2)
		long, short := stateKey("ext000000"), stateKey("ext000001")
		start := time.Now()
		next := func(want ...string) {
			t.Helper()
			<-l.pub.timer.C
			l.pub.due()
			if got := l.pub.take(l.held, l.throttledFor); !slices.Equal(got, want) {
				t.Fatalf("after %v: %v, want %v", time.Since(start), got, want)
			}
		}
		l.throttle(short, largeState)
		l.throttle(long, 10*largeState)
		l.pub.mark(long, false)
		l.pub.mark(short, false)
		next(short)
		l.pub.mark(short, false) // the timer is set to the end of the throttling, and fires earlier
		next(short)
		if took := time.Since(start); took != 2*collectFor {
			t.Errorf("the short one waited %v", took)
		}
		l.pub.mark(long, true)
		if got := l.pub.take(l.held, l.throttledFor); !slices.Equal(got, []string{long}) {
			t.Errorf("urgent: %v", got)
		}
		l.pub.mark(long, false)
		next()
		ready, lost := heartbeat.Ready, heartbeat.Lost
		l.changed(liveness.Change{Kind: liveness.Moved, ID: "ext000000", Instance: "two", From: ready, To: lost, WasBest: ready, Best: ready})
		l.changed(liveness.Change{Kind: liveness.Moved, ID: "ext000000", Instance: "two", From: lost, To: ready, WasBest: ready, Best: ready})
		if got := l.pub.take(l.held, l.throttledFor); len(got) != 0 {
			t.Errorf("one of many is urgent: %v", got)
		}
		next(long)
		if took := time.Since(start); took != 10*throttleStep {
			t.Errorf("the long one was throttled for %v", took)
		}
		l.throttle(long, 10*largeState)
		l.pub.mark(long, false)
		next() // and the timer is set to the end of the throttling
		at := time.Now()
		l.changed(liveness.Change{Kind: liveness.Moved, ID: "ext000000", Instance: "one", From: ready, To: lost, WasBest: ready, Best: lost})
		next(long)
		if took := time.Since(at); took != collectFor {
			t.Errorf("the change that it takes no calls waited %v", took)
		}
		l.throttle(long, 10*largeState)
		l.changed(liveness.Change{Kind: liveness.Moved, ID: "ext000000", Instance: "one", From: lost, To: ready, WasBest: lost, Best: ready})
		if got := l.pub.take(l.held, l.throttledFor); !slices.Equal(got, []string{long}) {
			t.Errorf("the change that it takes calls: %v", got)
		}
		if d := throttleAfter(1 << 30); d != maxThrottle {
			t.Errorf("the longest is throttled for %v", d)
		}
	})
}

// TestUpgradeOfMany: with the tools of a new version followers also receive an instance of that version, even if the
// state is throttled.
func TestUpgradeOfMany(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		old := b.ext("weather", "1.0.0", "n1", "get")
		old.up()
		old.sendHeartbeats()
		b.await("it is up", b.is("weather", heartbeat.Ready))
		if err := r.inLoop(b.timeout(), func(l *loop) { l.throttle(stateKey("weather"), 100*largeState) }); err != nil {
			t.Fatal(err)
		}
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
