package bridge

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// fleet is what a bridge runs: the workloads of its current plan, each with its instances.
type fleet struct {
	newInstance func(u *workload, replica int) *instance

	mu        sync.Mutex
	hasPlan   bool                       // apply has been called
	workloads map[string]*deployment     // by id
	stopping  map[string]<-chan struct{} // workloads that were stopped; closed when all their instances have stopped
	drained   map[string]bool            // workloads that were drained when they were stopped: they return drained
	wg        sync.WaitGroup
}

// deployment is one workload and its running instances.
type deployment struct {
	workload  *workload
	instances []*instance
	cancel    context.CancelCauseFunc
	left      atomic.Int64  // instances that are running
	done      chan struct{} // closed when none is running
}

// apply makes the fleet match plan: it starts new workloads, replaces changed ones and stops the others. It does not
// wait until they are ready. A workload that is replaced or returns starts when its old instances have stopped, because
// an extension may not tolerate two processes at once. ctx is the parent of all instances.
func (f *fleet) apply(ctx context.Context, plan []*workload) (started, replaced, stopped []string) {
	started, replaced, stopped = f.diff(plan) // stays true without the lock: only apply changes the fleet, one call at a time
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
		f.workloads[id].cancel(errRemoved)
		f.stopping[id] = f.workloads[id].done
		if areDrained(f.workloads[id].instances) {
			f.drained[id] = true
		}
		delete(f.workloads, id)
	}
	for _, w := range plan {
		switch r := f.workloads[w.id()]; {
		case r == nil:
			f.start(ctx, w, f.stopping[w.id()], nil)
			delete(f.drained, w.id())
		case slices.Contains(replaced, w.id()):
			r.cancel(errReplaced)
			f.start(ctx, w, r.done, r.instances)
		}
	}
	return started, replaced, stopped
}

// planApplied reports whether apply has been called.
func (f *fleet) planApplied() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hasPlan
}

func areDrained(instances []*instance) bool {
	return len(instances) > 0 && !slices.ContainsFunc(instances, func(s *instance) bool { return !isDrained(s) })
}

// start runs w's instances once after is closed. Those that replace drained ones are drained, too, unless there are fewer of
// them now: one that takes calls may be among those that are gone. The caller holds mu.
func (f *fleet) start(ctx context.Context, w *workload, after <-chan struct{}, replaced []*instance) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &deployment{workload: w, cancel: cancel, done: make(chan struct{})}
	allDrained := areDrained(replaced) || f.drained[w.id()]
	n := max(1, w.replicas)
	for i := range n {
		s := f.newInstance(w, i)
		if w.gated == "" && (allDrained || n >= len(replaced) && i < len(replaced) && isDrained(replaced[i])) { // a gated one has no calls
			s.drain()
		}
		r.instances = append(r.instances, s)
	}
	f.workloads[w.id()] = r
	r.left.Store(int64(len(r.instances)))
	for _, s := range r.instances {
		f.wg.Go(func() { // owned by the fleet, and wait waits for it; ends with ctx
			if after != nil {
				<-after // it is stopping, which takes bounded time
			}
			s.run(ctx)
			if r.left.Add(-1) == 0 {
				cancel(nil)
				close(r.done)
			}
		})
	}
}

// find returns the instances of an extension, or only the given instance. A member is found by its own id and by its
// parent's.
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

// all returns all instances, sorted by extension id.
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

// wait waits until all instances have stopped. The context of apply must have ended.
func (f *fleet) wait() { f.wg.Wait() }
