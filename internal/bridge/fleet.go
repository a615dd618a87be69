package bridge

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// fleet is what a bridge runs: the units of its current plan, each with its slots.
type fleet struct {
	make func(u *unit, replica int) *slot

	mu      sync.Mutex
	applied bool                       // there has been a plan
	units   map[string]*running        // by id
	leaving map[string]<-chan struct{} // of those that were stopped: closed when nothing of them is left
	wg      sync.WaitGroup
}

// running is one unit and what was started for it.
type running struct {
	unit   *unit
	slots  []*slot
	cancel context.CancelCauseFunc
	left   atomic.Int64  // slots that run
	done   chan struct{} // closed when there are none left
}

// apply makes the fleet what plan says: new units start, changed ones are replaced, others stop. It does not
// wait for anything to come up; what is replaced, or comes back, stops first, since two lives of one extension may not
// be meant to overlap. ctx is that of the fleet.
func (f *fleet) apply(ctx context.Context, plan []*unit) (started, replaced, stopped []string) {
	started, replaced, stopped = f.diff(plan) // only apply changes what it looks at, and apply has one caller at a time
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied = true
	maps.DeleteFunc(f.leaving, func(_ string, left <-chan struct{}) bool {
		select {
		case <-left:
			return true
		default:
			return false
		}
	})
	for _, id := range stopped {
		f.units[id].cancel(mesh.ErrRemoved)
		f.leaving[id] = f.units[id].done
		delete(f.units, id)
	}
	for _, u := range plan {
		switch r := f.units[u.id()]; {
		case r == nil:
			f.start(ctx, u, f.leaving[u.id()])
		case slices.Contains(replaced, u.id()):
			r.cancel(mesh.ErrRemoved)
			f.start(ctx, u, r.done)
		}
	}
	return started, replaced, stopped
}

// begun reports whether there has been a plan.
func (f *fleet) begun() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applied
}

// start runs u's slots once after is closed. The caller holds mu.
func (f *fleet) start(ctx context.Context, u *unit, after <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &running{unit: u, cancel: cancel, done: make(chan struct{})}
	for i := range max(1, u.replicas) {
		r.slots = append(r.slots, f.make(u, i))
	}
	f.units[u.id()] = r
	r.left.Store(int64(len(r.slots)))
	for _, s := range r.slots {
		f.wg.Go(func() { // owned by the fleet, which waits; ends with ctx
			if after != nil {
				<-after // it has been told to stop, and stops in bounded time
			}
			if err := s.run(ctx); err != nil && !errors.Is(err, context.Cause(ctx)) {
				s.log.Warn("slot stopped", "error", err)
			}
			if r.left.Add(-1) == 0 {
				cancel(nil)
				close(r.done)
			}
		})
	}
}

// find returns the slots of an extension, or only the one with this instance. Members count as their own
// extension and as part of their parent.
func (f *fleet) find(id, instance string) []*slot {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*slot
	for uid, r := range f.units {
		if uid != id && !strings.HasPrefix(uid, id+".") {
			continue
		}
		for _, s := range r.slots {
			if instance == "" || s.mesh.Instance() == instance {
				out = append(out, s)
			}
		}
	}
	return out
}

// all returns the slots by id, in the order of the ids.
func (f *fleet) all() []*slot {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*slot
	for _, r := range f.units {
		out = append(out, r.slots...)
	}
	slices.SortStableFunc(out, func(a, b *slot) int { return strings.Compare(a.unit.id(), b.unit.id()) })
	return out
}

// wait waits until everything has stopped, once the context of apply has ended.
func (f *fleet) wait() { f.wg.Wait() }
