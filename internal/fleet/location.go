package fleet

import (
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// location is where an instance runs: as announced, or as restored from the catalog.
type location struct {
	host, bridge string
	run          time.Time // of the bridge when the instance last sent something; zero: not known
}

// runOf is the start time of a bridge's run as reported; zero for a bridge without a report. It is only compared for
// equality, so clocks do not matter.
func (bs *bridges) runOf(bridge string) time.Time {
	if b := bs.byName[bridge]; b != nil && b.host != nil {
		return b.host.Since
	}
	return time.Time{}
}

// instanceKey identifies an instance.
type instanceKey struct{ id, instance string }

// setLocation records where an instance of x runs.
func (st *store) setLocation(x *extension, instance string, p *location) {
	if was := x.locations[instance]; was != nil && was.bridge == p.bridge {
		*was = *p
		return
	}
	instance = strings.Clone(instance)
	st.removeLocation(x, instance)
	x.locations[instance] = p
	if p.bridge == "" {
		return
	}
	instances := st.instancesByBridge[p.bridge]
	if instances == nil {
		instances = map[instanceKey]struct{}{}
		st.instancesByBridge[p.bridge] = instances
	}
	instances[instanceKey{x.id, instance}] = struct{}{}
}

// removeLocation removes the location of an instance of x.
func (st *store) removeLocation(x *extension, instance string) {
	p := x.locations[instance]
	if p == nil {
		return
	}
	delete(x.locations, instance)
	if instances := st.instancesByBridge[p.bridge]; instances != nil {
		if delete(instances, instanceKey{x.id, instance}); len(instances) == 0 {
			delete(st.instancesByBridge, p.bridge)
		}
	}
}

// drop removes x.
func (st *store) drop(x *extension) {
	for instance := range x.locations {
		st.removeLocation(x, instance)
	}
	st.account(x, -x.kept)
	delete(st.exts, x.id)
}

// instancesAt iterates over the instances located at a bridge. It uses an index: the cost of a bridge's start and
// stop must not grow with the mesh.
func (st *store) instancesAt(bridge string) iter.Seq2[*extension, string] {
	return func(yield func(*extension, string) bool) {
		for r := range st.instancesByBridge[bridge] {
			if !yield(st.exts[r.id], r.instance) {
				return
			}
		}
	}
}

// confirmRun records that an instance belongs to its bridge's present run, because it sent a heartbeat.
func (bs *bridges) confirmRun(x *extension, instance string) {
	if p := x.locations[instance]; p != nil && p.bridge != "" {
		p.run = bs.runOf(p.bridge)
	}
}

// recheckReported re-evaluates the instances of every bridge with a changed report.
//
// The first report of a bridge can arrive after announcements of its instances, which then belong to the reported
// run. Instances that are gone already belong to an earlier run that ended without shutdown notices. If one of them
// is still up, its next heartbeat corrects that.
func (bs *bridges) recheckReported() {
	for bridge, first := range bs.reportChanged {
		for x, instance := range bs.instancesAt(bridge) {
			bs.reconsider[x.id] = true
			p := x.locations[instance]
			if !first || !p.run.IsZero() {
				continue
			}
			p.run = bs.runOf(bridge)
			if i, ok := bs.mon.Instance(x.id, instance); ok && (i.State == heartbeat.Lost || i.State == heartbeat.Shutdown) {
				p.run = unknownRun
			}
		}
	}
	clear(bs.reportChanged)
}

// unknownRun is a run that no bridge reports.
var unknownRun = time.Unix(0, 1)

// stale reports whether an instance is of an earlier run of its bridge. Only one bridge of a name runs at a time, so
// an instance of an earlier run is gone.
func (bs *bridges) stale(x *extension, instance string) bool {
	p := x.locations[instance]
	if p == nil || p.bridge == "" || p.run.IsZero() {
		return false
	}
	run := bs.runOf(p.bridge)
	return !run.IsZero() && !run.Equal(p.run)
}

// bridgeRestarted handles a new run of a bridge. Lost instances of the previous run are removed at once, so that they
// do not outrank a failed or gated instance of the new run. Those that still look ready are probed, which is faster
// than waiting for missing heartbeats.
func (bs *bridges) bridgeRestarted(b *bridge, now time.Time) {
	if b.gone {
		b.gone, b.changed = false, now
		bs.markSkills(b)
	}
	b.timeouts = 0
	for x, instance := range bs.instancesAt(b.name) {
		if !bs.stale(x, instance) {
			continue
		}
		bs.reconsider[x.id] = true
		if i, ok := bs.mon.Instance(x.id, instance); ok && i.State == heartbeat.Ready && bs.leads {
			bs.probes.probe(x, instance, now)
		}
	}
}

// unlisted reports whether the latest report of an instance's bridge does not list its extension, although the bridge
// is up: its shutdown notice was missed, or its manifest was removed while the bridge did not run. For a bridge that
// is gone the last report may have been missed as well.
func (bs *bridges) unlisted(x *extension, instance string) bool {
	p := x.locations[instance]
	if p == nil || p.bridge == "" {
		return false
	}
	b := bs.byName[p.bridge]
	return b != nil && b.reported && !b.gone && b.host.Extensions != nil && !slices.Contains(b.host.Extensions, x.id)
}

// dropStale removes the instances of x that are gone and that belong to an earlier run of their bridge. The last
// instance stays, so that users find that the extension existed and is lost. If its bridge's report no longer lists
// the extension, the last one is removed too, and the extension is forgotten when no instance is left.
func (bs *bridges) dropStale(x *extension, health liveness.Extension) {
	left := len(health.Instances)
	for _, i := range health.Instances {
		old := bs.stale(x, i.Instance)
		inherited := i.LastHeartbeat.IsZero() && x.announcements[i.Instance] == nil // read from the catalog
		gone := i.State == heartbeat.Lost || i.State == heartbeat.Shutdown || inherited && old
		final := i.State == heartbeat.Shutdown && !old // its bridge has just stopped it, and reports that next
		unlisted := (inherited || gone) && !final && bs.unlisted(x, i.Instance)
		if !unlisted && (!gone || left < 2 || !old) {
			continue
		}
		if c, ok := bs.mon.Remove(x.id, i.Instance, bs.now); ok {
			bs.changed(c)
			left--
		}
	}
	if left == 0 && len(health.Instances) > 0 && bs.empty(x.id) {
		if c, ok := bs.mon.Forget(x.id); ok {
			bs.changed(c)
		}
	}
}

// dropForgotten removes stale instances that the earlier leader has removed from the catalog. This replica did not
// probe them, so they still look ready here.
func (bs *bridges) dropForgotten(x *extension, d *wire.StateDoc, now time.Time) {
	shown := map[string]bool{}
	for _, i := range d.Instances {
		shown[i.Instance] = true
	}
	for instance := range x.locations {
		if shown[instance] || !bs.stale(x, instance) {
			continue
		}
		if c, ok := bs.mon.Remove(x.id, instance, now); ok {
			bs.changed(c)
		}
	}
}
