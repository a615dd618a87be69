package mesh

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// stamp identifies one message of the bucket's stream. The time tells the streams apart when a bucket was
// deleted and made again: sequences start over, time does not.
type stamp struct {
	seq uint64
	ts  int64 // unix nanoseconds, the server's clock
}

// change is one message of the bucket: key has the value, or is gone where value is nil.
type change struct {
	key   string
	at    stamp
	value []byte
	doc   any // *Spec, *StateDoc, *Skill or *Host; nil for a deletion and for the registries' own keys
}

// catalogData is the catalog's content. It is changed by apply and reset only; a change costs what the one
// changed document costs, whatever the size of the catalog.
type catalogData struct {
	id       string // the stream's creation time
	revision uint64
	last     stamp     // the newest message that is in
	heard    time.Time // when the catalog last showed life
	stamps   map[string]stamp
	own      map[string]stamp // the registries' own keys
	markers  map[string]stamp // deleted keys, as far as their markers may still be in the bucket

	keepUntil time.Time // until then the documents with a zero stamp stay, which are not in this stream; zero: there are none
	exts      map[string]Extension
	skills    map[string]Skill
	hosts     map[string]Host
	names     nameIndex

	unindexed map[string]struct{} // whose tools changed since the form index saw them; nil: it has to see all

	hookChanges uint64 // how often a spec with hooks came, changed or went; never starts over, not with another stream either
}

func newCatalogData() catalogData {
	return catalogData{
		stamps: map[string]stamp{}, own: map[string]stamp{}, markers: map[string]stamp{},
		exts:   map[string]Extension{},
		skills: map[string]Skill{},
		hosts:  map[string]Host{},
		names:  nameIndex{},
	}
}

// decode reads the document of a change. A value that cannot be read counts as a deletion: a document that
// contradicts the one before it is better gone than wrong.
func (ch *change) decode() error {
	if ch.value == nil || ch.doc != nil {
		return nil
	}
	kind, name, _ := strings.Cut(ch.key, ".")
	var err error
	switch kind {
	case wire.KindSpec:
		var s *Spec
		if s, err = decodeSpec(ch.value); err == nil {
			s.ID = name // the key is authoritative
			ch.doc = s
			return nil
		}
	case wire.KindState:
		ch.doc = &StateDoc{}
	case wire.KindSkill:
		ch.doc = &Skill{}
	case wire.KindHost:
		ch.doc = &Host{}
	default:
		return nil
	}
	if err == nil {
		err = json.Unmarshal(ch.value, ch.doc)
	}
	if err != nil {
		ch.value, ch.doc = nil, nil
		return fmt.Errorf("catalog key %s: %w", ch.key, err)
	}
	return nil
}

// apply takes in a decoded change and says what it means to watchers; ok is false where it means nothing to
// them: a change that is in already, a registry's own key, the deletion of nothing.
func (d *catalogData) apply(ch change) (ev Event, ok bool) {
	if ch.at.seq > d.last.seq {
		d.last = ch.at
	}
	if ch.value == nil {
		d.markers[ch.key] = ch.at
	} else {
		delete(d.markers, ch.key)
	}
	kind, name, _ := strings.Cut(ch.key, ".")
	switch kind {
	case wire.KindSpec, wire.KindState, wire.KindSkill, wire.KindHost:
	default:
		if ch.value == nil {
			delete(d.own, ch.key)
		} else {
			d.own[ch.key] = ch.at
		}
		return Event{}, false
	}
	old, had := d.stamps[ch.key]
	if had && old.seq >= ch.at.seq {
		return Event{}, false
	}
	d.revision = max(d.revision, ch.at.seq)
	if ch.value == nil {
		delete(d.stamps, ch.key)
	} else {
		d.stamps[ch.key] = ch.at
	}
	d.set(kind, name, ch)
	if ch.value == nil {
		return Event{Revision: ch.at.seq, Key: ch.key, Op: opDelete}, had
	}
	return Event{Revision: ch.at.seq, Key: ch.key, Op: opPut, Value: ch.value}, true
}

// set puts a change's document in its place, or takes it away.
func (d *catalogData) set(kind, name string, ch change) {
	switch kind {
	case wire.KindSkill:
		if doc, ok := ch.doc.(*Skill); ok {
			d.skills[name] = *doc
		} else {
			delete(d.skills, name)
		}
	case wire.KindHost:
		if doc, ok := ch.doc.(*Host); ok {
			d.hosts[name] = *doc
		} else {
			delete(d.hosts, name)
		}
	case wire.KindSpec, wire.KindState:
		d.setExtension(kind, name, ch)
	}
}

func (d *catalogData) setExtension(kind, id string, ch change) {
	e, ok := d.exts[id]
	if !ok {
		e = Extension{ID: id, Spec: &Spec{ID: id}, State: &StateDoc{}}
	}
	rev := ch.at.seq
	if ch.doc == nil {
		rev = 0
	}
	if kind == wire.KindState {
		e.State, e.StateRevision = &StateDoc{}, rev
		if doc, ok := ch.doc.(*StateDoc); ok {
			e.State = doc
		}
	} else {
		old := e.Spec
		d.names.remove(old)
		e.Spec, e.SpecRevision = &Spec{ID: id}, rev
		if doc, ok := ch.doc.(*Spec); ok {
			e.Spec = doc
		}
		d.names.add(e.Spec)
		if len(old.Hooks)+len(e.Spec.Hooks) > 0 {
			d.hookChanges++
		}
		if !slices.EqualFunc(old.Tools, e.Spec.Tools, func(a, b Tool) bool { return a.Own == b.Own }) {
			d.toolsChanged(id)
		}
	}
	if e.SpecRevision == 0 && e.StateRevision == 0 {
		delete(d.exts, id)
		return
	}
	d.exts[id] = e
}

// recreated reports whether m comes from another stream than what is in: a message no newer by sequence and
// newer by time than our newest cannot be of the same stream, nor can two messages have one sequence.
func (d *catalogData) recreated(m stamp) bool {
	return m.seq <= d.last.seq && m.ts > d.last.ts || m.seq == d.last.seq && m.ts != d.last.ts
}

// replace makes ready for a full snapshot of another stream: nothing that is in counts as newer than what
// comes. The documents stay until apply and missing have gone through them, so that watchers hear of what
// differs and of nothing else.
func (d *catalogData) replace(snapshot map[string]change) {
	d.id, d.revision, d.last = "", 0, stamp{}
	for key, at := range d.stamps {
		if ch, ok := snapshot[key]; !ok || ch.at != at {
			d.stamps[key] = stamp{}
		}
	}
}

// missing are deletions for the keys that stand here and not in a full snapshot that reaches up to through.
// Keys that changed after the snapshot was made stay, and so do those of another stream, until keepUntil.
func (d *catalogData) missing(snapshot map[string]change, through stamp) []change {
	var gone []change
	for key, at := range d.stamps {
		if at == (stamp{}) && !d.keepUntil.IsZero() {
			continue
		}
		if _, ok := snapshot[key]; !ok && at.seq < through.seq {
			gone = append(gone, change{key: key, at: through})
		}
	}
	return gone
}

// markerAge is for how long the marker of a deleted key is in the bucket for certain.
const markerAge = 5 * time.Minute

// purged reports whether a bucket cannot have everything that is in here: the number of its messages is too small, or its
// first one too new. Each key has one message, the value or the marker of its deletion.
func (d *catalogData) purged(first stamp, messages int, newest stamp) bool {
	want := len(d.own)
	for _, at := range d.stamps {
		if at == (stamp{}) {
			continue
		}
		if want++; at.seq < first.seq {
			return true
		}
	}
	for key, at := range d.markers {
		if newest.ts-at.ts > int64(markerAge) {
			delete(d.markers, key)
		} else {
			want++
		}
	}
	return messages < want
}

// sortedValues lists m's values in the order of its keys.
func sortedValues[V any](m map[string]V) []V {
	out := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}
