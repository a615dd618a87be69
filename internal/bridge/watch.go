package bridge

import (
	"context"
	"slices"

	"github.com/extmesh/extmesh/internal/discovery"
)

// watch looks after manifests that come, change and go, until ctx ends. It says what a reload would do, or
// does it where the settings want that. A system that refuses to watch costs only this.
func (b *Bridge) watch(ctx context.Context) {
	s := b.config()
	w := s.Watch
	if !w.Enabled || !s.Enabled {
		return
	}
	err := discovery.Watch(ctx, discovery.WatchOptions{
		Roots: s.Roots(), IgnoreDirs: s.IgnoreDirs, MaxDepth: s.MaxDepth, FollowLinks: s.FollowLinks, Debounce: w.Debounce,
	}, func(changes []discovery.Change) {
		for _, c := range changes {
			b.log.Info("manifest "+string(c.Kind), "path", c.Path)
		}
		if w.Reload {
			if _, _, _, err := b.reload(ctx); err != nil {
				b.log.Error("the change was not taken over", "error", err)
			}
			return
		}
		p := b.makePlan(ctx)
		b.keepWhatBroke(&p)
		start, replace, stop := b.fleet.diff(p.units)
		if len(start)+len(replace)+len(stop) == 0 {
			return
		}
		b.log.Info("a reload would take this over", "start", start, "replace", replace, "stop", stop)
	})
	if err != nil && ctx.Err() == nil {
		b.log.Warn("manifests are not watched", "error", err)
	}
}

// diff says what apply would do.
func (f *fleet) diff(plan []*unit) (start, replace, stop []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := map[string]*unit{}
	for _, u := range plan {
		wanted[u.id()] = u
		if f.units[u.id()] == nil {
			start = append(start, u.id())
		}
	}
	for id, r := range f.units {
		if u := wanted[id]; u == nil {
			stop = append(stop, id)
		} else if !u.same(r.unit) {
			replace = append(replace, id)
		}
	}
	for _, ids := range [][]string{start, replace, stop} {
		slices.Sort(ids)
	}
	return start, replace, stop
}
