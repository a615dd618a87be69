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
	newInstance func(u *workload, replica int) *instance

	mu        sync.Mutex
	hasPlan   bool                       // there has been a plan
	workloads map[string]*deployment     // by id
	stopping  map[string]<-chan struct{} // of those that were stopped: closed when nothing of them is left
	wg        sync.WaitGroup
}

// running is one unit and what was started for it.
type deployment struct {
	workload  *workload
	instances []*instance
	cancel    context.CancelCauseFunc
	left      atomic.Int64  // slots that run
	done      chan struct{} // closed when there are none left
}

// apply makes the fleet what plan says: new units start, changed ones are replaced, others stop. It does not
// wait for anything to come up; what is replaced, or comes back, stops first, since two lives of one extension may not
// be meant to overlap. ctx is that of the fleet.
func (f *fleet) apply(ctx context.Context, plan []*workload) (started, replaced, stopped []string) {
	started, replaced, stopped = f.diff(plan) // only apply changes what it looks at, and apply has one caller at a time
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hasPlan = true
	maps.DeleteFunc(f.stopping, func(_ string, left <-chan struct{}) bool {
		select {
		case <-left:
			return true
		default:
			return false
		}
	})
	for _, id := range stopped {
		f.workloads[id].cancel(mesh.ErrRemoved)
		f.stopping[id] = f.workloads[id].done
		delete(f.workloads, id)
	}
	for _, w := range plan {
		switch r := f.workloads[w.id()]; {
		case r == nil:
			f.start(ctx, w, f.stopping[w.id()])
		case slices.Contains(replaced, w.id()):
			r.cancel(mesh.ErrRemoved)
			f.start(ctx, w, r.done)
		}
	}
	return started, replaced, stopped
}

// begun reports whether there has been a plan.
func (f *fleet) planApplied() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hasPlan
}

// start runs u's slots once after is closed. The caller holds mu.
func (f *fleet) start(ctx context.Context, w *workload, after <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &deployment{workload: w, cancel: cancel, done: make(chan struct{})}
	for i := range max(1, w.replicas) {
		r.instances = append(r.instances, f.newInstance(w, i))
	}
	f.workloads[w.id()] = r
	r.left.Store(int64(len(r.instances)))
	for _, s := range r.instances {
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
func (f *fleet) find(id, instanceID string) []*instance {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*instance
	for uid, r := range f.workloads {
		if uid != id && !strings.HasPrefix(uid, id+".") {
			continue
		}
		for _, s := range r.instances {
			if instanceID == "" || s.mesh.Instance() == instanceID {
				out = append(out, s)
			}
		}
	}
	return out
}

// all returns the slots by id, in the order of the ids.
func (f *fleet) all() []*instance {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*instance
	for _, r := range f.workloads {
		out = append(out, r.instances...)
	}
	slices.SortStableFunc(out, func(a, b *instance) int { return strings.Compare(a.workload.id(), b.workload.id()) })
	return out
}

// wait waits until everything has stopped, once the context of apply has ended.
func (f *fleet) wait() { f.wg.Wait() }
