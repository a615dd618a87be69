package mesh

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
)

// The values of Event.Op.
const (
	opPut    = "put"
	opDelete = "delete"
	opSynced = "synced"
)

// Event is one change to the catalog. An event with the Op "synced" has no key: it is a watcher's first, when the catalog
// is loaded, and is repeated when the bucket was recreated. A watcher gets every change after it, and its revision can be
// compared with theirs.
type Event struct {
	Revision uint64          `json:"revision"`
	Key      string          `json:"key"`             // <kind>.<name>; the kinds are spec, state, skill and host
	Op       string          `json:"op"`              // put, delete or synced
	Value    json.RawMessage `json:"value,omitempty"` // the document, as it is in the bucket
}

// Kind is the part of the key before its first dot, Name the rest.
func (e Event) Kind() string { kind, _, _ := strings.Cut(e.Key, "."); return kind }

// Name is the extension's id, the skill's directory or the bridge's name.
func (e Event) Name() string { _, name, _ := strings.Cut(e.Key, "."); return name }

// watcher collects what one Watch has not delivered yet: at most one event a key, so it is bounded by the
// catalog and the follower never waits for it.
type watcher struct {
	mu      sync.Mutex
	pending map[string]Event
	wake    chan struct{} // buffered, 1
}

// fewPending is how many events a watcher keeps the room for.
const fewPending = 64

func (w *watcher) add(ev Event) {
	w.mu.Lock()
	if ev.Op == opSynced {
		w.pending = map[string]Event{} // revisions of another bucket would sort wrongly; its deletions and puts follow
	}
	w.pending[ev.Key] = ev
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns what is pending in the order of the revisions, opSynced first.
func (w *watcher) take() []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.SortedFunc(maps.Values(w.pending), func(a, b Event) int {
		if (a.Op == opSynced) != (b.Op == opSynced) {
			if a.Op == opSynced {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Revision, b.Revision)
	})
	// A map keeps the room that it once needed, and ranging over it goes through all of that.
	if len(w.pending) > fewPending {
		w.pending = map[string]Event{}
	} else {
		clear(w.pending)
	}
	return out
}

// Watch calls f for every change until ctx ends, and returns ctx's error. The first event is opSynced, once
// the catalog is loaded: read All then, and nothing is missed. f is called from this goroutine only; while it
// is busy, changes to one key are folded into the last, and the catalog itself goes on.
func (c *Catalog) Watch(ctx context.Context, f func(Event)) error {
	w := &watcher{pending: map[string]Event{}, wake: make(chan struct{}, 1)}
	c.mu.Lock()
	c.watchers[w] = struct{}{}
	select {
	case <-c.ready:
		w.add(Event{Revision: c.data.revision, Op: opSynced})
	default:
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.watchers, w)
		c.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
			for _, ev := range w.take() {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				f(ev)
			}
		}
	}
}

// WaitFor waits until cond returns true. cond is called when the catalog is loaded and after every change. The error is that
// ctx has ended.
func (c *Catalog) WaitFor(ctx context.Context, cond func(*Catalog) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	met := false
	err := c.Watch(ctx, func(Event) {
		if met = cond(c); met {
			cancel()
		}
	})
	if met {
		return nil
	}
	return err
}

// publish sends events to the watchers. c.mu is held, so that a new Watch sees either the event or the change.
func (c *Catalog) publish(events []Event) {
	for w := range c.watchers {
		for _, ev := range events {
			w.add(ev)
		}
	}
}
