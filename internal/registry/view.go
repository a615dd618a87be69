package registry

import (
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/wire"
)

// view is this replica's copy of the bucket: a snapshot and the republished changes since. Every replica has one, so
// a new leader need not write what is there already, and any replica can answer requests for the catalog.
type view struct {
	records   map[string]record    // deleted keys are kept only for the lease
	markers   map[string]time.Time // deletion times of deleted keys
	last      uint64               // every message up to this sequence is included
	at        time.Time            // server time of the newest message
	revision  uint64               // of the last change of a spec, state, skill or host key
	created   time.Time            // the stream's creation: the catalog id
	synced    bool                 // false until the first snapshot, and between a gap and the next snapshot
	pending   []record             // events received while not synced
	leaseSeen time.Time            // when the lease was last renewed, as a sign that a leader works

	order []string // see loop.order; nil after a key was added or removed
}

// maxPendingEvents bounds the events kept during a snapshot. More than that is a gap, which needs another snapshot.
const maxPendingEvents = 100_000

// catalogID is the identity of the bucket. Revisions are comparable only within one.
func (v *view) catalogID() string {
	if v.created.IsZero() {
		return ""
	}
	return v.created.UTC().Format(time.RFC3339Nano)
}

// event applies one republished change. It reports whether the key changed, and whether a snapshot is needed.
func (v *view) event(r record) (changed, gap bool) {
	switch {
	case !v.synced:
		if len(v.pending) < maxPendingEvents {
			v.pending = append(v.pending, r)
		}
		return false, false
	case r.seq <= v.last:
		return false, r.at.After(v.at) // a newer event with a lower sequence: the stream was recreated
	case r.seq > v.last+1:
		v.lose()
		v.pending = append(v.pending, r)
		return false, true
	}
	v.put(r)
	return true, false
}

// lose marks the view as possibly incomplete.
func (v *view) lose() { v.synced, v.pending = false, nil }

// load replaces the content by a snapshot and the events received since. It returns the keys that changed, and
// whether the events leave another gap.
func (v *view) load(s *snapshot) (changed []string, gap bool) {
	old, waiting := v.records, v.pending
	v.records, v.pending, v.order = make(map[string]record, len(s.records)), nil, nil
	v.markers = map[string]time.Time{}
	v.last, v.created, v.synced, v.revision, v.at = s.last, s.created, true, 0, time.Time{}
	for _, r := range s.records {
		v.keep(r)
	}
	for _, r := range waiting {
		if r.seq <= v.last {
			continue
		}
		if _, gap = v.event(r); gap {
			break
		}
	}
	for key, r := range v.records {
		if old[key].seq != r.seq {
			changed = append(changed, key)
		}
	}
	for key := range old {
		if _, ok := v.records[key]; !ok {
			changed = append(changed, key)
		}
	}
	return changed, gap
}

func (v *view) put(r record) {
	v.last = r.seq
	v.keep(r)
}

func (v *view) keep(r record) {
	if r.at.After(v.at) {
		v.at = r.at
	}
	if kind, _, _ := strings.Cut(r.key, "."); kind != "lease" && kind != "epoch" {
		v.revision = max(v.revision, r.seq)
	}
	old, had := v.records[r.key]
	if had == r.deleted || old.deleted != r.deleted {
		v.order = nil
	}
	if r.deleted {
		v.markers[strings.Clone(r.key)] = r.at
	} else {
		delete(v.markers, r.key)
	}
	if r.deleted && r.key != wire.KeyLease {
		delete(v.records, r.key)
		return
	}
	v.records[strings.Clone(r.key)] = r
}

// get is the value of a key, nil if it does not exist.
func (v *view) get(key string) []byte {
	if r, ok := v.records[key]; ok && !r.deleted {
		return r.value
	}
	return nil
}

// markerAge is how long the marker of a deleted key is certainly in the bucket: less than markerTTL.
const markerAge = markerTTL / 2

// purged reports whether a bucket with that many messages cannot contain everything in the view. A purge is not
// republished and leaves no gap in the sequences. Each key has one message: its value or its deletion marker.
func (v *view) purged(first uint64, messages uint64) bool {
	want := 0
	for _, r := range v.records {
		if r.deleted { // its marker is counted below
			continue
		}
		if want++; r.seq < first {
			return true
		}
	}
	for key, at := range v.markers {
		if v.at.Sub(at) > markerAge {
			delete(v.markers, key)
		} else {
			want++
		}
	}
	return messages < uint64(want)
}

// Synced reports whether the view is complete.
func (v *view) Synced() bool { return v.synced }

// Get returns a document of the catalog.
func (v *view) Get(key string) (fleet.Record, bool) {
	r, ok := v.records[key]
	return fleet.Record{Value: r.value, Revision: r.seq}, ok && !r.deleted
}

// Each calls f for each document.
func (v *view) Each(f func(key string, r fleet.Record)) {
	for key, r := range v.records {
		if !r.deleted {
			f(key, fleet.Record{Value: r.value, Revision: r.seq})
		}
	}
}
