package mesh

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
)

// change is a message of the bucket with its document.
type change struct {
	catalog.Change
	doc any // *Spec, *StateDoc, *Skill or *Host; nil for a deletion and for the registries' own keys
}

// catalogData is the content of a Catalog. The cost of a change depends on the changed document only, not on the size of the
// catalog.
type catalogData struct {
	id       string // the creation time of the stream
	revision uint64
	seen     time.Time // the last sign that the catalog is maintained
	copy     catalog.Copy

	keepUntil time.Time // until then documents of an earlier stream are kept; zero if there is no such document
	exts      map[string]Extension
	skills    map[string]Skill
	hosts     map[string]Host
	names     nameIndex

	hookChanges uint64 // number of changes of specs with hooks; never starts over
	specChanges uint64 // the same of all specs
}

func newCatalogData() catalogData {
	return catalogData{exts: map[string]Extension{}, skills: map[string]Skill{}, hosts: map[string]Host{}, names: nameIndex{}}
}

// decode decodes the document of a change. A value that cannot be decoded counts as a deletion: no document is better than
// an outdated one.
func (ch *change) decode() error {
	if ch.Value == nil || ch.doc != nil {
		return nil
	}
	kind, name, _ := strings.Cut(ch.Key, ".")
	var err error
	switch kind {
	case wire.KindSpec:
		var s *Spec
		if s, err = decodeSpec(ch.Value); err == nil {
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
		err = json.Unmarshal(ch.Value, ch.doc)
	}
	if err != nil {
		ch.Value, ch.doc = nil, nil
		return fmt.Errorf("catalog key %s: %w", ch.Key, err)
	}
	return nil
}

// dropSchemas releases the text of a spec, and what of its tools is in it: most of the memory of a catalog.
func (ch *change) dropSchemas() {
	s, ok := ch.doc.(*Spec)
	if !ok {
		return
	}
	for i := range s.Tools {
		s.Tools[i].InputSchema, s.Tools[i].Extra = nil, nil
	}
	ch.Value = []byte{}
}

// apply applies a decoded change and returns its event. ok is false if there is no event: for a change that was applied
// already, a registry's own key, or the deletion of a key that does not exist.
func (d *catalogData) apply(ch change) (ev Event, ok bool) {
	newer, existed := d.copy.Put(ch.Change)
	kind, name, _ := strings.Cut(ch.Key, ".")
	switch kind {
	case wire.KindSpec, wire.KindState, wire.KindSkill, wire.KindHost:
	default:
		return Event{}, false
	}
	if !newer {
		return Event{}, false
	}
	d.revision = max(d.revision, ch.At.Seq)
	d.set(kind, name, ch)
	if ch.Deleted() {
		return Event{Revision: ch.At.Seq, Key: ch.Key, Op: opDelete}, existed
	}
	return Event{Revision: ch.At.Seq, Key: ch.Key, Op: opPut, Value: ch.Value}, true
}

// seenAt notes the time of the newest message that was read as a sign that the catalog is maintained.
func (d *catalogData) seenAt(at catalog.Stamp) {
	if t := written(at); t.After(d.seen) {
		d.seen = t
	}
}

// written returns when a message was written, by the server's clock, or now if that clock is ahead of ours: it must not make
// the catalog appear younger than it is.
func written(at catalog.Stamp) time.Time {
	if at.Time == 0 { // the bucket is empty
		return time.Time{}
	}
	if t, now := at.At(), time.Now(); t.Before(now) {
		return t
	} else {
		return now
	}
}

// set stores the document of a change, or removes it.
func (d *catalogData) set(kind, name string, ch change) {
	switch kind {
	case wire.KindSkill:
		if doc, ok := ch.doc.(*Skill); ok {
			doc.Dir = name
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
	rev := ch.At.Seq
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
		d.specChanges++
		if len(old.Hooks)+len(e.Spec.Hooks) > 0 {
			d.hookChanges++
		}
	}
	if e.SpecRevision == 0 && e.StateRevision == 0 {
		delete(d.exts, id)
		return
	}
	d.exts[id] = e
}

// sortedValues returns the values of m in the order of its keys.
func sortedValues[V any](m map[string]V) []V {
	out := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}
