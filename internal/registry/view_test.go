package registry

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// TestViewFindsPurges: a purge is noticed by the number of messages or by the first sequence, without false alarms.
func TestViewFindsPurges(t *testing.T) {
	now := time.Now()
	v := view{markers: map[string]time.Time{}, pending: nil}
	v.load(&snapshot{last: 9, records: []record{
		{key: "state.old", seq: 2, at: now.Add(-time.Hour), deleted: true}, // written by an operator, without a TTL
		{key: "spec.a", seq: 3, at: now}, {key: "state.a", seq: 4, at: now},
		{key: wire.KeyEpoch, seq: 5, at: now}, {key: wire.KeyLease, seq: 9, at: now},
	}})
	at := uint64(9)
	event := func(key string, deleted bool) {
		at++
		if changed, gap := v.event(record{key: key, seq: at, at: now, deleted: deleted}); !changed || gap {
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
