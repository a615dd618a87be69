package registry

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// publisher is what the leader has yet to write. Keys are marked, and documents built only when they are written:
// a thousand changes of one extension within a moment are one document.
type publisher struct {
	dirty    map[string]bool   // true: urgent
	backlog  []string          // to be compared when nothing else is to do: a new leader's whole catalog
	urgent   int               // of dirty
	sent     map[string][]byte // written and acknowledged, not yet seen in the view; nil: deleted
	inflight map[string][]byte // in the batch on its way
	timer    *time.Timer
	armed    bool
	fires    time.Time // when armed
	collect  bool      // the timer has fired: everything may go
	failures int       // in a row
	paused   bool      // after a failure, until the timer fires
}

// collectFor is how long changes that are not urgent wait for others.
const collectFor = 100 * time.Millisecond

// A state longer than largeState is not written again, unless it is urgent, before largeRest has passed for as often as it is
// longer, or maxRest: what a thousand instances say is two hundred thousand bytes, which go to all who follow.
const (
	largeState = 16 << 10
	largeRest  = 100 * time.Millisecond
	maxRest    = 2 * time.Second
)

// restAfter is how long a state of so many bytes rests.
func restAfter(size int) time.Duration {
	return min(time.Duration(size/largeState)*largeRest, maxRest)
}

// maxPause is the longest pause after batches that failed: a stream without a leader refuses at once, and the first
// batch after its election should not come late.
const maxPause = 500 * time.Millisecond

// backlogChunk is how many documents of the backlog are built at a time.
const backlogChunk = 100

func newPublisher() publisher {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return publisher{dirty: map[string]bool{}, sent: map[string][]byte{}, timer: t}
}

func specKey(id string) string  { return mesh.KindSpec + "." + id }
func stateKey(id string) string { return mesh.KindState + "." + id }

// mark says that a key's document may have changed.
func (p *publisher) mark(key string, urgent bool) {
	was, known := p.dirty[key]
	if known && (was || !urgent) {
		return
	}
	p.dirty[key] = urgent
	if urgent {
		p.urgent++
	} else {
		p.wait(collectFor)
	}
}

// wait has the timer fire in d, or sooner if it is armed; a pause is not cut short.
func (p *publisher) wait(d time.Duration) {
	at := time.Now().Add(d)
	if !p.armed || !p.paused && at.Before(p.fires) {
		p.armed, p.fires = true, at
		p.timer.Reset(d)
	}
}

func (p *publisher) due() { p.armed, p.collect, p.paused = false, true, false }

// pause lets nothing go for a while that grows with the failures.
func (p *publisher) pause() {
	p.failures++
	p.paused, p.armed = true, true
	p.timer.Reset(min(collectFor<<min(p.failures, 5), maxPause))
}

// take removes the keys that may go now, at most a batch of them, in order. Those stay that have to wait, as hold says, and
// those that rest, unless they are urgent. Of more than a batch it takes any, for to put them all in order each time is what
// a large mesh would be built in.
// From the backlog it takes a few at a time, so that the loop keeps listening.
func (p *publisher) take(hold func(key string) bool, rest func(key string) time.Duration) []string {
	var keys []string
	if p.paused {
		return nil
	}
	if p.urgent > 0 || p.collect {
		stay := false
		for key, urgent := range p.dirty {
			if len(keys) == maxBatch {
				stay = true
				break
			}
			switch {
			case hold(key):
				stay = true
			case urgent:
				keys = append(keys, key)
			case p.collect:
				if d := rest(key); d > 0 {
					p.wait(d)
				} else {
					keys = append(keys, key)
				}
			}
		}
		slices.Sort(keys)
		p.collect = p.collect && stay
		for _, key := range keys {
			p.unmark(key)
		}
		if len(p.dirty) == 0 {
			p.dirty = map[string]bool{} // a map that was large once is as slow to look through for ever
		}
	}
	for n := 0; n < backlogChunk && len(keys) < maxBatch && len(p.backlog) > 0 && !hold(p.backlog[0]); n++ {
		keys = append(keys, p.backlog[0])
		p.backlog = p.backlog[1:]
	}
	return keys
}

func (p *publisher) unmark(key string) {
	if p.dirty[key] {
		p.urgent--
	}
	delete(p.dirty, key)
}

// flush writes what is due, if this replica leads and no batch is on its way.
func (l *loop) flush() {
	l.relist()
	if again := l.reconsider; len(again) > 0 {
		l.reconsider = map[string]bool{} // see publisher.take
		for id := range again {
			l.choose(id)
		}
		if len(l.reconsider) > 0 {
			l.again()
		}
	}
	if !l.leading() || l.pub.inflight != nil {
		return
	}
	keys := l.pub.take(l.held, l.rest)
	var writes []write
	size := 0
	for n, key := range keys {
		if size > maxBatchBytes {
			for _, rest := range keys[n:] {
				l.pub.mark(rest, true)
			}
			break
		}
		if w, ok := l.document(key); ok {
			writes = append(writes, w)
			size += len(w.value)
		}
	}
	switch {
	case len(writes) > 0:
		l.write(writes)
	case len(keys) > 0:
		l.again() // there may be more
	}
}

// held reports whether a key has to wait. Specs wait until all have been restored: before, names would be given without
// knowing all that claim them. A state that cannot be restored for the moment, since the view has a gap, waits for that:
// what is not known of it yet would be taken for gone, and deleted.
func (l *loop) held(key string) bool {
	switch kind, id, _ := strings.Cut(key, "."); kind {
	case mesh.KindSpec:
		return len(l.unrestored) > 0
	case mesh.KindState:
		return !l.view.synced && l.unrestored[id]
	}
	return false
}

// tire has a long state rest from now on: it has been written.
func (l *loop) tire(key string, size int) {
	kind, id, _ := strings.Cut(key, ".")
	x := l.exts[id]
	if kind != mesh.KindState || x == nil {
		return
	}
	if x.long = size > largeState; x.long {
		x.rests = time.Now().Add(restAfter(size))
	}
}

// rest is for how long a key's document has to rest still.
func (l *loop) rest(key string) time.Duration {
	if kind, id, _ := strings.Cut(key, "."); kind == mesh.KindState {
		if x := l.exts[id]; x != nil && !x.rests.IsZero() {
			return time.Until(x.rests)
		}
	}
	return 0
}

// document builds what a key should have. ok is false where that is what it has.
func (l *loop) document(key string) (w write, ok bool) {
	have := l.current(key)
	value, err := l.value(key, have)
	if err != nil {
		l.log.Error("cannot write a document", "key", key, "error", err)
		return w, false
	}
	if limit := l.valueLimit(); len(value) > limit {
		l.refuse("document", key, fmt.Errorf("%d bytes are over the limit of %d", len(value), limit))
		return w, false
	}
	if value == nil {
		return write{key: key, delete: true}, have != nil
	}
	return write{key: key, value: value}, !bytes.Equal(value, have)
}

// value is what a key should have, nil if it should not be there; have is what it has.
func (l *loop) value(key string, have []byte) ([]byte, error) {
	kind, name, _ := strings.Cut(key, ".")
	if kind == mesh.KindSpec || kind == mesh.KindState {
		l.restore(name)
	}
	x := l.exts[name]
	how, known := l.mon.Extension(name)
	switch {
	case kind == mesh.KindSpec && x != nil:
		if s := x.spec(how, &l.names); s != nil {
			return marshalSpec(s, x.cut(), l.specLimit())
		}
	case kind == mesh.KindState && known && x != nil:
		var was *mesh.StateDoc
		if have != nil {
			was = new(mesh.StateDoc)
			if json.Unmarshal(have, was) != nil {
				was = nil
			}
		}
		return marshalState(x.state(how, was), l.valueLimit())
	case kind == mesh.KindHost:
		if b := l.bridges[name]; b != nil && b.host != nil {
			var was mesh.Host // of an unreadable document nothing is kept
			_ = json.Unmarshal(have, &was)
			return plainjson.Marshal(b.document(&was))
		}
	case kind == mesh.KindSkill:
		if s := skill(l.present(l.skills[name])); s != nil {
			return plainjson.Marshal(s)
		}
	}
	return nil, nil
}

// valueLimit is the largest value that the server takes, less room for the subject and the headers.
func (l *loop) valueLimit() int { return int(l.nc.MaxPayload()) - 2048 }

// specLimit is the largest spec.
func (l *loop) specLimit() int { return l.valueLimit() - l.stateRoom() }

// stateRoom is how much smaller a spec is kept, so that an ordinary state fits into the same page of the catalog.
func (l *loop) stateRoom() int { return int(l.nc.MaxPayload()) / 32 }

// current is the value that a key has in the bucket as far as this replica knows: what it wrote last, or what
// it saw.
func (l *loop) current(key string) []byte {
	if v, ok := l.pub.sent[key]; ok {
		return v
	}
	return l.view.get(key)
}

// write sends a batch. Its answer comes back as a report.
func (l *loop) write(writes []write) {
	p := &l.pub
	p.inflight = make(map[string][]byte, len(writes))
	for _, w := range writes {
		p.inflight[w.key] = w.value
	}
	epoch := l.election.epoch
	l.wg.Go(func() { // owned by the loop; ends with commit's time-out
		last, err := l.bucket.commit(l.ctx, epoch, writes)
		l.report(func(l *loop) { l.written(epoch, last, err) })
	})
}

// written takes in the end of a batch. After a failure it is open whether the batch has landed; the keys are
// compared again, with whatever the view shows by then.
func (l *loop) written(epoch, last uint64, err error) {
	p := &l.pub
	batch := p.inflight
	p.inflight = nil
	l.again()
	if err == nil {
		p.failures = 0
		l.traffic.Batches++
		l.traffic.Writes += uint64(len(batch))
		for key, value := range batch {
			l.tire(key, len(value))
		}
		if l.view.last < last { // else all of it has been seen, and maybe what came after
			maps.Copy(p.sent, batch)
		}
		return
	}
	for key := range batch {
		delete(p.sent, key)
		p.mark(key, false)
	}
	p.pause()
	l.traffic.Failures++
	level := slog.LevelDebug
	if p.failures == 1 && l.ctx.Err() == nil {
		level = slog.LevelWarn
	}
	l.log.Log(l.ctx, level, "could not write to the catalog", "keys", len(batch), "error", err)
	if l.election.epoch == epoch && (errors.Is(err, errFenced) || errors.Is(err, errNoBucket)) {
		l.stepDown()
	}
}

// allKeys is every key that there is or should be, those that name no tools first.
func (l *loop) allKeys() []string {
	all := map[string]bool{}
	for key := range l.view.records {
		if kind, _, _ := strings.Cut(key, "."); section(kind) != "" {
			all[key] = true
		}
	}
	for id := range l.exts {
		all[specKey(id)], all[stateKey(id)] = true, true
	}
	for name := range l.bridges {
		all[hostKey(name)] = true
	}
	for dir := range l.skills {
		all[skillKey(dir)] = true
	}
	isSpec := func(key string) int { return btoi(strings.HasPrefix(key, mesh.KindSpec+".")) }
	return slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(isSpec(a), isSpec(b)), cmp.Compare(a, b))
	})
}
