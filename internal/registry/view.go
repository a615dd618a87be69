package registry

import (
	"strings"
	"time"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// view is the bucket as this replica has followed it: a snapshot, and the republished changes since. Every
// replica has one, so a new leader knows at once what it need not write, and any replica can answer for the
// catalog.
type view struct {
	records  map[string]record    // deleted ones only of the lease
	markers  map[string]time.Time // deleted keys: when
	last     uint64               // every message up to here is in
	at       time.Time            // of the newest message, by the server's clock
	revision uint64               // the last change of a spec, state, skill or host key
	created  time.Time            // the stream's creation: the catalog id
	synced   bool                 // false until there is a snapshot, and again from a gap to the next
	waiting  []record             // heard while not synced
	heard    time.Time            // when the lease was last seen to change: a leader is at work

	order []string // see loop.order; nil when a key came or went
}

// maxWaiting bounds what is kept for after a snapshot; what does not fit is a gap, and another snapshot.
const maxWaiting = 100_000

// catalogID is the identity of the bucket: revisions are comparable only within one.
func (v *view) catalogID() string {
	if v.created.IsZero() {
		return ""
	}
	return v.created.UTC().Format(time.RFC3339Nano)
}

// event takes in one republished change. It reports whether the key changed, and whether a snapshot is needed.
func (v *view) event(r record) (changed, gap bool) {
	switch {
	case !v.synced:
		if len(v.waiting) < maxWaiting {
			v.waiting = append(v.waiting, r)
		}
		return false, false
	case r.seq <= v.last:
		return false, r.at.After(v.at) // later, yet with a lower number: the stream was made anew
	case r.seq > v.last+1:
		v.lose()
		v.waiting = append(v.waiting, r)
		return false, true
	}
	v.put(r)
	return true, false
}

// lose says that the view can no longer be trusted to be complete.
func (v *view) lose() { v.synced, v.waiting = false, nil }

// load replaces everything by a snapshot and what was heard since. It returns the keys that differ now, and
// whether what was heard leaves a gap again.
func (v *view) load(s *snapshot) (changed []string, gap bool) {
	old, waiting := v.records, v.waiting
	v.records, v.waiting, v.order = make(map[string]record, len(s.records)), nil, nil
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
	if r.deleted && r.key != mesh.KeyLease {
		delete(v.records, r.key)
		return
	}
	v.records[strings.Clone(r.key)] = r
}

// get is the value of a key, nil where there is none.
func (v *view) get(key string) []byte {
	if r, ok := v.records[key]; ok && !r.deleted {
		return r.value
	}
	return nil
}

// markerAge is for how long the marker of a deleted key is in the bucket for certain: less than markerTTL.
const markerAge = markerTTL / 2

// purged reports whether a bucket of so many messages cannot have everything that is in the view. A purge is republished
// to nobody, and leaves no gap in the sequences. Each key has one message, the value or the marker of its deletion.
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
