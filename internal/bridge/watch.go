package bridge

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/discovery"
)

// watch watches for changed manifests until ctx ends. After a reload with other settings, it watches with those.
func (b *Bridge) watch(ctx context.Context) {
	for ctx.Err() == nil {
		settings := b.planner.config()
		watchCtx, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { b.watchWith(watchCtx, ctx, settings) }) // owned here; ends with watchCtx, after a reload in progress
		for sameWatch(settings, b.planner.config()) && ctx.Err() == nil {
			select {
			case <-b.reloaded:
			case <-ctx.Done():
			}
		}
		stop()
		wg.Wait()
	}
}

// sameWatch reports whether a and b watch the same directories in the same way.
func sameWatch(a, b config.Config) bool {
	return a.Enabled == b.Enabled && a.Watch == b.Watch && slices.Equal(a.Roots(), b.Roots()) &&
		slices.Equal(a.IgnoreDirs, b.IgnoreDirs) && a.MaxDepth == b.MaxDepth && a.FollowLinks == b.FollowLinks
}

// watchWith watches with the settings s until ctx ends. Depending on s it reloads after a change, or logs that a reload is
// needed. A reload uses running, the context of Run: ctx ends when a reload changes the settings for watching.
func (b *Bridge) watchWith(ctx, running context.Context, s config.Config) {
	w := s.Watch
	if !w.Enabled || !s.Enabled {
		return
	}
	discovery.Watch(ctx, discovery.WatchOptions{
		Roots: s.Roots(), IgnoreDirs: s.IgnoreDirs, MaxDepth: s.MaxDepth, FollowLinks: s.FollowLinks, Debounce: w.Debounce,
		// Changes between the first plan and the start of the watch would otherwise be missed.
		Ready: func() {
			if start, replace, stop := b.difference(running); len(start)+len(replace)+len(stop) > 0 {
				b.configChanged(running, w.Reload)
			}
		},
	}, func() { b.configChanged(running, w.Reload) })
}

// configChanged reloads, or logs what a reload would change.
func (b *Bridge) configChanged(ctx context.Context, reload bool) {
	if reload {
		if _, _, _, err := b.reload(ctx, true); err != nil {
			b.log.Error("manifests cannot be applied", "error", err)
		}
		return
	}
	if start, replace, stop := b.difference(ctx); len(start)+len(replace)+len(stop) > 0 {
		b.log.Info("configuration changed on disk; run `extctl reload` to apply it", "start", start, "replace", replace, "stop", stop)
	}
}

// difference returns what a reload would change.
func (b *Bridge) difference(ctx context.Context) (start, replace, stop []string) {
	b.reloadMu.Lock()
	defer b.reloadMu.Unlock()
	p := b.planner.makePlan(ctx)
	old := b.plan()
	b.planner.carryOver(&p, old)
	start, replace, stop = b.fleet.diff(p.workloads)
	was := map[string]string{}
	for _, d := range old.declared {
		was[d.announce.ID] = d.announce.ManifestHash
	}
	for _, d := range p.declared {
		hash, known := was[d.announce.ID]
		delete(was, d.announce.ID)
		switch {
		case !known:
			start = append(start, d.announce.ID)
		case hash != d.announce.ManifestHash:
			replace = append(replace, d.announce.ID)
		}
	}
	stop = slices.AppendSeq(stop, maps.Keys(was))
	for _, ids := range [][]string{start, replace, stop} {
		slices.Sort(ids)
	}
	return start, replace, stop
}

// diff returns what apply would change.
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
