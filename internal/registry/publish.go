package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// publisher holds what the leader has yet to write. Keys are marked, and their documents are built only when they are
// written: a thousand changes of one extension in a short time become one document.
type publisher struct {
	dirty    map[string]bool      // keys to compare and write; true: at once
	urgent   int                  // number of keys to write at once
	sent     map[string][]byte    // written and acknowledged, not yet seen in the view; nil: deleted
	inflight map[string][]byte    // in the batch that is being written
	paidAt   map[string]time.Time // by id, when what was written of its large documents is 1 MB/s
	timer    *time.Timer
	armed    bool
	due      bool // the timer has fired
	paused   bool // the last batch failed: write nothing until the timer fires
	failing  bool // the last batch failed
}

// flushInterval is how long changes are collected, unless one has to be written at once, and how long the leader waits
// after a failed batch.
const flushInterval = 100 * time.Millisecond

// The documents of an extension, as far as they have more than largeDocument bytes, are written with at most 1 MB/s, of which
// those of burst can come at once, so that one extension with many changes does not use up the bandwidth of the catalog.
const (
	largeDocument = 64 << 10
	perByte       = time.Microsecond
	burst         = 5 * time.Second
)

func newPublisher() publisher {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return publisher{dirty: map[string]bool{}, sent: map[string][]byte{}, paidAt: map[string]time.Time{}, timer: t}
}

// mark records that the document of a key may have changed.
func (p *publisher) mark(key string, urgent bool) {
	if was := p.dirty[key]; urgent && !was {
		p.urgent++
	}
	p.dirty[key] = p.dirty[key] || urgent
	p.wait()
}

func (p *publisher) wait() {
	if !p.armed {
		p.armed = true
		p.timer.Reset(flushInterval)
	}
}

func (p *publisher) fired() { p.armed, p.due, p.paused = false, true, false }

// charge keeps the documents of the extensions with large ones in a batch that was written from being written too often.
func (p *publisher) charge(batch map[string][]byte) {
	now := time.Now()
	maps.DeleteFunc(p.paidAt, func(_ string, at time.Time) bool { return now.After(at) })
	for key, value := range batch {
		if len(value) > largeDocument {
			id := idOf(key)
			p.paidAt[id] = later(now, p.paidAt[id]).Add(time.Duration(len(value)) * perByte)
		}
	}
}

// idOf is the id of the extension of a spec or a state, which are held together: followers see a version with its instances. Any
// other key is its own.
func idOf(key string) string {
	if kind, id, _ := strings.Cut(key, "."); kind == wire.KindSpec || kind == wire.KindState {
		return id
	}
	return key
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// take removes the keys that may be written now, at most a batch of them, and returns them in order: all that are marked
// if the timer has fired, else those to write at once. Keys that were written too often and those that hold reports stay. If more than one batch is
// pending, it takes an arbitrary subset: sorting all keys on every flush is quadratic while a large mesh starts.
func (p *publisher) take(hold func(key string) bool) []string {
	if p.paused || p.urgent == 0 && !p.due {
		return nil
	}
	var keys []string
	now := time.Now()
	for key, urgent := range p.dirty {
		if (urgent || p.due) && p.paidAt[idOf(key)].Sub(now) < burst && !hold(key) {
			keys = append(keys, key)
		}
		if len(keys) == maxBatch {
			break
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if p.dirty[key] {
			p.urgent--
		}
		delete(p.dirty, key)
	}
	p.due = p.due && len(keys) == maxBatch // there may be more
	if len(p.dirty) > 0 {
		p.wait()
	} else {
		p.dirty = map[string]bool{} // a Go map that was large once stays slow to iterate over
	}
	return keys
}

// flush carries out what has been decided, and writes what is due if this replica leads and no batch is being written.
func (l *loop) flush() {
	now := time.Now()
	l.fleet.SetLimits(l.limits())
	if l.fleet.Settle(now) {
		poke(l.more)
	}
	l.perform()
	if !l.leading() || l.pub.inflight != nil {
		return
	}
	keys := l.pub.take(l.fleet.Held)
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
	l.perform() // building documents can restore extensions
	switch {
	case len(writes) > 0:
		l.write(writes)
	case len(keys) == maxBatch:
		poke(l.more) // there may be more
	}
}

// document builds the document that a key should have. ok is false if the key has it already.
func (l *loop) document(key string) (w write, ok bool) {
	have, written := l.pub.sent[key] // in the bucket, as far as this replica has seen: its own last write or an event
	if !written {
		have = l.view.get(key)
	}
	value, err := l.fleet.Document(key, have, time.Now())
	if err != nil {
		l.log.Error("cannot write a document", "key", key, "error", err)
		return w, false
	}
	if limit := l.limits().Value; len(value) > limit {
		l.refuse("document", key, fmt.Errorf("%d bytes are over the limit of %d", len(value), limit))
		return w, false
	}
	if value == nil {
		return write{key: key, delete: true}, have != nil
	}
	return write{key: key, value: value}, !bytes.Equal(value, have)
}

// write sends a batch. The result comes back as a report.
func (l *loop) write(writes []write) {
	p := &l.pub
	p.inflight = make(map[string][]byte, len(writes))
	for _, w := range writes {
		p.inflight[w.key] = w.value
	}
	epoch := l.election.epoch
	l.do(&l.unlimited, func(ctx context.Context) func(*loop) {
		last, err := l.bucket.commit(ctx, epoch, writes)
		return func(l *loop) { l.written(epoch, last, err) }
	})
}

// written handles the result of a batch. A failed batch may still have been stored, so its keys are compared again
// with the view.
func (l *loop) written(epoch, last uint64, err error) {
	p := &l.pub
	batch := p.inflight
	p.inflight = nil
	poke(l.more)
	if err == nil {
		p.failing = false
		l.traffic.Batches++
		l.traffic.Writes += uint64(len(batch))
		p.charge(batch)
		if l.view.last() < last { // else the view already has the batch, and perhaps later changes
			maps.Copy(p.sent, batch)
		}
		return
	}
	for key := range batch {
		delete(p.sent, key)
		if l.leading() {
			p.mark(key, false)
		}
	}
	p.wait()
	level := slog.LevelDebug
	if !p.failing && l.ctx.Err() == nil {
		level = slog.LevelWarn
	}
	p.paused, p.failing = true, true
	l.traffic.Failures++
	l.log.Log(l.ctx, level, "cannot write to the catalog", "keys", len(batch), "error", err)
	if l.election.epoch == epoch && (errors.Is(err, errFenced) || errors.Is(err, errNoBucket)) {
		l.stepDown()
	}
}
