package registry

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
)

// TestViewFindsPurges: a purge is noticed by the number of messages or by the first sequence, without false alarms.
func TestViewFindsPurges(t *testing.T) {
	now := time.Now()
	stamp := func(seq uint64, at time.Time) catalog.Stamp { return catalog.Stamp{Seq: seq, Time: at.UnixNano()} }
	var v view
	v.load(&snapshot{through: stamp(9, now), changes: []catalog.Change{
		{Key: "state.old", At: stamp(2, now.Add(-time.Hour))}, // written by an operator, without a TTL
		{Key: "spec.a", At: stamp(3, now), Value: []byte("{}")}, {Key: "state.a", At: stamp(4, now), Value: []byte("{}")},
		{Key: wire.KeyEpoch, At: stamp(5, now), Value: []byte("{}")}, {Key: wire.KeyLease, At: stamp(9, now), Value: []byte("{}")},
	}})
	at := uint64(9)
	event := func(key string, deleted bool) {
		at++
		ch := catalog.Change{Key: key, At: stamp(at, now)}
		if !deleted {
			ch.Value = []byte("{}")
		}
		if changed, gap := v.event(ch); !changed || gap {
			t.Fatalf("%s: changed %t, gap %t", key, changed, gap)
		}
	}
	check := func(what string, first, messages uint64, want bool) {
		t.Helper()
		if got := v.purged(first, messages); got != want {
			t.Errorf("%s: first %d, %d messages: purged %t", what, first, messages, got)
		}
	}
	check("all is there", 2, 5, false)
	check("the old marker has gone", 3, 4, false)
	check("one is missing", 3, 3, true)
	check("the first is newer", 4, 4, true)
	event("state.b", false)
	event("spec.b", false)
	event("state.b", true)
	check("a marker more", 3, 6, false)
	check("a key is missing, and there is a marker", 3, 5, true)
	event(wire.KeyLease, true)
	check("the lease has expired", 3, 6, false)
	event(wire.KeyLease, false)
	check("the lease is there again", 3, 6, false)
}
