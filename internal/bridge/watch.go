package bridge

import (
	"context"
	"slices"
	"sync"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/discovery"
)

// watch looks after manifests that come, change and go, until ctx ends; after a reload that looks elsewhere, there.
func (b *Bridge) watch(ctx context.Context) {
	for ctx.Err() == nil {
		settings := b.config()
		watchCtx, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { b.watchWith(watchCtx, ctx, settings) }) // owned here; ends with watching, and a reload under way
		for sameWatch(settings, b.config()) && ctx.Err() == nil {
			select {
			case <-b.reloaded:
			case <-ctx.Done():
			}
		}
		stop()
		wg.Wait()
	}
}

// sameWatch reports whether a and b have the same watched in the same way.
func sameWatch(a, b config.Config) bool {
	return a.Enabled == b.Enabled && a.Watch == b.Watch && slices.Equal(a.Roots(), b.Roots()) &&
		slices.Equal(a.IgnoreDirs, b.IgnoreDirs) && a.MaxDepth == b.MaxDepth && a.FollowLinks == b.FollowLinks
}

// watchAs watches as s says, until ctx ends. It says what a reload would do, or does it where s wants that, with running,
// which is Run's: a reload that finds out that something else is to be watched would otherwise end its own search. A
// system that refuses to watch costs only this.
func (b *Bridge) watchWith(ctx, running context.Context, s config.Config) {
	w := s.Watch
	if !w.Enabled || !s.Enabled {
		return
	}
	err := discovery.Watch(ctx, discovery.WatchOptions{
		Roots: s.Roots(), IgnoreDirs: s.IgnoreDirs, MaxDepth: s.MaxDepth, FollowLinks: s.FollowLinks, Debounce: w.Debounce,
		// What changed between the plan and the watch would be seen by neither.
		Ready: func() {
			if start, replace, stop := b.difference(running); len(start)+len(replace)+len(stop) > 0 {
				b.configChanged(running, w.Reload)
			}
		},
	}, func(changes []discovery.Change) {
		for _, c := range changes {
			b.log.Info("manifest "+string(c.Kind), "path", c.Path)
		}
		b.configChanged(running, w.Reload)
	})
	if err != nil && ctx.Err() == nil {
		b.log.Warn("manifests are not watched", "error", err)
	}
}

// lookAgain takes over what changed, or says what a reload would do.
func (b *Bridge) configChanged(ctx context.Context, reload bool) {
	if reload {
		if _, _, _, err := b.reload(ctx); err != nil {
			b.log.Error("the change was not taken over", "error", err)
		}
		return
	}
	if start, replace, stop := b.difference(ctx); len(start)+len(replace)+len(stop) > 0 {
		b.log.Info("a reload would take this over", "start", start, "replace", replace, "stop", stop)
	}
}

// difference is what a reload would do.
func (b *Bridge) difference(ctx context.Context) (start, replace, stop []string) {
	b.reloadMu.Lock()
	defer b.reloadMu.Unlock()
	p := b.makePlan(ctx)
	b.carryOver(&p)
	return b.fleet.diff(p.workloads)
}

// diff says what apply would do.
func (f *fleet) diff(plan []*workload) (start, replace, stop []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := map[string]*workload{}
	for _, w := range plan {
		wanted[w.id()] = w
		if f.workloads[w.id()] == nil {
			start = append(start, w.id())
		}
	}
	for id, r := range f.workloads {
		if w := wanted[id]; w == nil {
			stop = append(stop, id)
		} else if !w.equal(r.workload) {
			replace = append(replace, id)
		}
	}
	for _, ids := range [][]string{start, replace, stop} {
		slices.Sort(ids)
	}
	return start, replace, stop
}
