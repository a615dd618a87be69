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
	"github.com/extmesh/extmesh/internal/wire"
)

// publisher holds what the leader has yet to write. Keys are marked, and their documents are built only when they are
// written: a thousand changes of one extension in a short time become one document.
type publisher struct {
	dirty    map[string]bool   // true: urgent
	backlog  []string          // keys to compare when nothing is dirty: the whole catalog after an election
	urgent   int               // number of urgent keys in dirty
	sent     map[string][]byte // written and acknowledged, not yet seen in the view; nil: deleted
	inflight map[string][]byte // in the batch that is being written
	timer    *time.Timer
	armed    bool
	fires    time.Time // when armed
	collect  bool      // the timer has fired: keys that are not urgent may be written too
	failures int       // in a row
	paused   bool      // after a failure, until the timer fires
}

// collectFor is how long changes that are not urgent are collected.
const collectFor = 100 * time.Millisecond

// The write of a state longer than largeState is throttled unless it is urgent: the next one waits for throttleStep
// per largeState bytes, at most maxThrottle. The state of a thousand instances has 200,000 bytes, and each write is
// sent to every follower.
const (
	largeState   = 16 << 10
	throttleStep = 100 * time.Millisecond
	maxThrottle  = 2 * time.Second
)

// throttleAfter is how long the next write of a state of that size waits.
func throttleAfter(size int) time.Duration {
	return min(time.Duration(size/largeState)*throttleStep, maxThrottle)
}

// maxPause is the longest pause after failed batches. A stream without a leader refuses immediately, and the first
// batch after its election should not be late.
const maxPause = 500 * time.Millisecond

// backlogChunk is how many documents of the backlog are built in one flush.
const backlogChunk = 100

func newPublisher() publisher {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return publisher{dirty: map[string]bool{}, sent: map[string][]byte{}, timer: t}
}

func specKey(id string) string  { return wire.KindSpec + "." + id }
func stateKey(id string) string { return wire.KindState + "." + id }

// mark records that the document of a key may have changed.
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

// wait sets the timer to fire in d, or earlier if it is set to. It does not shorten a pause.
func (p *publisher) wait(d time.Duration) {
	at := time.Now().Add(d)
	if !p.armed || !p.paused && at.Before(p.fires) {
		p.armed, p.fires = true, at
		p.timer.Reset(d)
	}
}

func (p *publisher) due() { p.armed, p.collect, p.paused = false, true, false }

// pause stops all writes for a time that grows with the failures.
func (p *publisher) pause() {
	p.failures++
	p.paused, p.armed = true, true
	p.timer.Reset(min(collectFor<<min(p.failures, 5), maxPause))
}

// take removes the keys that may be written now, at most a batch of them, and returns them in order. Keys that hold
// reports stay, and so do throttled ones unless they are urgent. If more than one batch is pending, it takes an
// arbitrary subset: sorting all keys on every flush is quadratic while a large mesh starts. Of the backlog it takes a
// few at a time, so that the loop keeps receiving.
func (p *publisher) take(hold func(key string) bool, throttled func(key string) time.Duration) []string {
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
				if d := throttled(key); d > 0 {
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
			p.dirty = map[string]bool{} // a Go map that was large once stays slow to iterate over
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

// flush writes what is due if this replica leads and no batch is being written.
func (l *loop) flush() {
	l.recheckReported()
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
	keys := l.pub.take(l.held, l.throttledFor)
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

// held reports whether a key has to wait. Specs wait until all of them are restored, because names depend on every
// extension that claims them. A state waits while it cannot be restored because the view has a gap; otherwise
// instances that are not restored yet would be deleted from it.
func (l *loop) held(key string) bool {
	switch kind, id, _ := strings.Cut(key, "."); kind {
	case wire.KindSpec:
		return len(l.unrestored) > 0
	case wire.KindState:
		return !l.view.synced && l.unrestored[id]
	}
	return false
}

// throttle delays the next write of a long state that has just been written.
func (l *loop) throttle(key string, size int) {
	kind, id, _ := strings.Cut(key, ".")
	x := l.exts[id]
	if kind != wire.KindState || x == nil {
		return
	}
	if x.large = size > largeState; x.large {
		x.throttledUntil = time.Now().Add(throttleAfter(size))
	}
}

// throttledFor is how long the write of a key still has to wait.
func (l *loop) throttledFor(key string) time.Duration {
	if kind, id, _ := strings.Cut(key, "."); kind == wire.KindState {
		if x := l.exts[id]; x != nil && !x.throttledUntil.IsZero() {
			return time.Until(x.throttledUntil)
		}
	}
	return 0
}

// document builds the document that a key should have. ok is false if the key has it already.
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

// value is the value that a key should have, nil if the key should not exist; have is its present value.
func (l *loop) value(key string, have []byte) ([]byte, error) {
	kind, name, _ := strings.Cut(key, ".")
	if kind == wire.KindSpec || kind == wire.KindState {
		l.restore(name)
	}
	x := l.exts[name]
	health, known := l.mon.Extension(name)
	switch {
	case kind == wire.KindSpec && x != nil:
		if s := x.spec(health, &l.names); s != nil {
			return marshalSpec(s, x.cut(), l.specLimit())
		}
	case kind == wire.KindState && known && x != nil:
		var was *wire.StateDoc
		if have != nil {
			was = new(wire.StateDoc)
			if json.Unmarshal(have, was) != nil {
				was = nil
			}
		}
		return marshalState(x.state(health, was), l.valueLimit())
	case kind == wire.KindHost:
		if b := l.bridges[name]; b != nil && b.host != nil {
			var was wire.Host // an unreadable document counts as empty
			_ = json.Unmarshal(have, &was)
			return plainjson.Marshal(b.document(&was))
		}
	case kind == wire.KindSkill:
		if s := skill(l.present(l.skills[name])); s != nil {
			return plainjson.Marshal(s)
		}
	}
	return nil, nil
}

// valueLimit is the server's largest message, less space for the subject and the headers.
func (l *loop) valueLimit() int { return int(l.nc.MaxPayload()) - 2048 }

// specLimit is the largest spec.
func (l *loop) specLimit() int { return l.valueLimit() - l.stateRoom() }

// stateRoom is the space that a spec leaves free, so that an ordinary state fits into the same page of the catalog.
func (l *loop) stateRoom() int { return int(l.nc.MaxPayload()) / 32 }

// current is the value of a key in the bucket, as far as this replica has seen: its own last write or an event.
func (l *loop) current(key string) []byte {
	if v, ok := l.pub.sent[key]; ok {
		return v
	}
	return l.view.get(key)
}

// write sends a batch. The result comes back as a report.
func (l *loop) write(writes []write) {
	p := &l.pub
	p.inflight = make(map[string][]byte, len(writes))
	for _, w := range writes {
		p.inflight[w.key] = w.value
	}
	epoch := l.election.epoch
	l.wg.Go(func() { // owned by the loop; ends with commit's timeout
		last, err := l.bucket.commit(l.ctx, epoch, writes)
		l.report(func(l *loop) { l.written(epoch, last, err) })
	})
}

// written handles the result of a batch. A failed batch may still have been stored, so its keys are compared again
// with the view.
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
			l.throttle(key, len(value))
		}
		if l.view.last < last { // else the view already has the batch, and perhaps later changes
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
	l.log.Log(l.ctx, level, "cannot write to the catalog", "keys", len(batch), "error", err)
	if l.election.epoch == epoch && (errors.Is(err, errFenced) || errors.Is(err, errNoBucket)) {
		l.stepDown()
	}
}

// allKeys returns every key that exists or should exist, specs last.
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
	isSpec := func(key string) int { return btoi(strings.HasPrefix(key, wire.KindSpec+".")) }
	return slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(isSpec(a), isSpec(b)), cmp.Compare(a, b))
	})
}
