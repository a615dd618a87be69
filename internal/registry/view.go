package registry

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
)

// view is this replica's copy of the bucket: a snapshot and the republished changes since. Every replica has one, so
// a new leader need not write what is there already, and any replica can answer requests for the catalog.
type view struct {
	copy      catalog.Copy
	values    map[string][]byte
	revision  uint64           // of the last change of a spec, state, skill or host key
	created   time.Time        // the stream's creation: the catalog id
	synced    bool             // false until the first snapshot, and between a gap and the next snapshot
	pending   []catalog.Change // events received while not synced
	leaseSeen time.Time        // when the lease was last renewed, as a sign that a leader works

	order    []string           // see sorted; nil after a key was added or removed
	outlines map[string]outline // of the specs, by id: made once for each change, because it reads the text of all tools
}

// outline is a spec without its tools, and their number.
type outline struct {
	spec  json.RawMessage // nil if it is not an object, which only a value written by hand is
	tools int
}

func outlineOf(spec json.RawMessage) (o outline) {
	rest, tools, err := wire.SplitTools(spec)
	if err != nil {
		return outline{}
	}
	o.spec = bytes.Clone(rest)                                                // without the room that append has left
	_ = jsonrpc.Elements(tools, func([]byte) bool { o.tools++; return true }) // null has none
	return o
}

// maxPendingEvents bounds the events kept during a snapshot. More than that is a gap, which needs another snapshot.
const maxPendingEvents = 100_000

// last is the sequence up to which every message is included.
func (v *view) last() uint64 { return v.copy.Last().Seq }

// catalogID is the identity of the bucket. Revisions are comparable only within one.
func (v *view) catalogID() string {
	if v.created.IsZero() {
		return ""
	}
	return v.created.UTC().Format(time.RFC3339Nano)
}

// event applies one republished change. It reports whether the key changed, and whether a snapshot is needed.
func (v *view) event(ch catalog.Change) (changed, gap bool) {
	if !v.synced {
		if len(v.pending) < maxPendingEvents {
			v.pending = append(v.pending, ch)
		}
		return false, false
	}
	switch v.copy.Step(ch.At) {
	case catalog.Old:
		return false, false
	case catalog.Other:
		return false, true
	case catalog.Gap:
		v.lose()
		v.pending = append(v.pending, ch)
		return false, true
	}
	v.put(ch)
	return true, false
}

// lose marks the view as possibly incomplete.
func (v *view) lose() { v.synced, v.pending = false, nil }

// load replaces the content by a snapshot and the events received since. It returns the keys that changed, and
// whether the events leave another gap.
func (v *view) load(s *snapshot) (changed []string, gap bool) {
	old, waiting := v.copy, v.pending
	*v = view{created: s.created, synced: true, leaseSeen: v.leaseSeen}
	for _, ch := range s.changes {
		v.put(ch)
	}
	v.copy.Reach(s.through)
	for _, ch := range waiting {
		if ch.At.Seq <= v.last() {
			continue
		}
		if _, gap = v.event(ch); gap {
			break
		}
	}
	for key, at := range v.copy.All() {
		if was, _ := old.Of(key); was.Seq != at.Seq {
			changed = append(changed, key)
		}
	}
	for key := range old.All() {
		if _, ok := v.copy.Of(key); !ok {
			changed = append(changed, key)
		}
	}
	return changed, gap
}

func (v *view) put(ch catalog.Change) {
	if !catalog.Own(ch.Key) {
		v.revision = max(v.revision, ch.At.Seq)
	}
	newer, existed := v.copy.Put(ch)
	if !newer {
		return
	}
	if v.values == nil {
		v.values, v.outlines = map[string][]byte{}, map[string]outline{}
	}
	id, isSpec := strings.CutPrefix(ch.Key, wire.KindSpec+".")
	switch {
	case ch.Deleted():
		delete(v.values, ch.Key)
		if isSpec {
			delete(v.outlines, id)
		}
	default:
		v.values[strings.Clone(ch.Key)] = ch.Value
		if isSpec {
			v.outlines[strings.Clone(id)] = outlineOf(ch.Value)
		}
	}
	if existed == ch.Deleted() {
		v.order = nil
	}
}

// get is the value of a key, nil if it does not exist.
func (v *view) get(key string) []byte { return v.values[key] }

// purged reports whether a bucket with that many messages cannot contain everything in the view.
func (v *view) purged(first, messages uint64) bool {
	return v.copy.Purged(catalog.Stamp{Seq: first}, int(messages), v.copy.Last())
}

// Synced reports whether the view is complete.
func (v *view) Synced() bool { return v.synced }

// Get returns a document of the catalog.
func (v *view) Get(key string) (fleet.Record, bool) {
	at, ok := v.copy.Of(key)
	return fleet.Record{Value: v.values[key], Revision: at.Seq}, ok
}

// Each calls f for each document.
func (v *view) Each(f func(key string, r fleet.Record)) {
	for key, at := range v.copy.All() {
		f(key, fleet.Record{Value: v.values[key], Revision: at.Seq})
	}
}
