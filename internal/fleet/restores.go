package fleet

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// A standby follows the specs that the leader writes, so that it has their tools and names when it is elected. A new
// leader also restores the instances in the catalog from which it has received nothing. Both are done in small steps
// between other events, because a catalog of ten thousand extensions takes a second to read.

// restores takes over what the catalog contains.
type restores struct {
	*core
	*modules
}

const restoreChunk = 100

// restoreSome restores some extensions from the catalog.
func (rs *restores) restoreSome() {
	if !rs.catalog.Synced() {
		return
	}
	n := 0
	for id := range rs.unrestored {
		rs.restore(id)
		if n++; n == restoreChunk {
			break
		}
	}
	if len(rs.unrestored) == 0 {
		rs.unrestored = map[string]bool{} // a Go map that was large once stays slow to iterate over
	}
}

// restore restores one extension from the catalog if its documents have changed.
func (rs *restores) restore(id string) {
	if !rs.unrestored[id] || !rs.catalog.Synced() {
		return
	}
	delete(rs.unrestored, id)
	x := rs.exts[id]
	spec, there := rs.catalog.Get(SpecKey(id))
	switch {
	case !there && x != nil && x.fromCatalog && !isUp(rs.mon, id): // not announced to this replica
		rs.drop(x)
		rs.names.Set(id, nil)
		if c, ok := rs.mon.Forget(id); ok {
			rs.changed(c)
		}
		return
	case there && (x == nil || x.restoredRevision != spec.Revision):
		if x = rs.restoreSpec(id, spec); x == nil {
			return
		}
	}
	if x == nil || !rs.leads {
		return
	}
	now := rs.now
	if !rs.mon.Known(id) { // otherwise it has been silent for some time
		rs.mon.Declare(id, now)
	}
	left := rs.restoreState(x, now)
	if (left || rs.inventories.complete()) && len(x.announcements) == 0 && rs.empty(id) {
		if c, ok := rs.mon.Forget(id); ok {
			rs.changed(c)
		}
		return
	}
	for _, instance := range slices.Sorted(maps.Keys(x.announcements)) {
		rs.handshakes.considerHandshake(x, instance)
	}
	rs.reconsider[id] = true
	rs.probes.inherit(x, now)
}

// isUp reports whether an instance of an extension is ready.
func isUp(mon *liveness.Monitor, id string) bool {
	health, _ := mon.Extension(id)
	return slices.ContainsFunc(health.Instances, func(i liveness.Instance) bool { return i.State == heartbeat.Ready })
}

// restoreSpec applies a spec of the catalog and adds its extension if necessary.
func (rs *restores) restoreSpec(id string, r Record) *extension {
	if checkHeartbeatID(id) != nil {
		return nil
	}
	x := rs.exts[id]
	if x == nil {
		x = newExtension(id, rs.now)
		x.fromCatalog = true
	}
	if !x.restore(r.Value, rs.now) {
		return nil
	}
	x.restoredRevision = r.Revision
	rs.exts[x.id] = x
	rs.account(x, x.size()-x.kept) // the spec may have replaced a handshake
	rs.nameTools(x)
	return x
}

// restoreState restores the instances of an extension from which this replica has received nothing. It reports
// whether it left out those that their bridge no longer lists.
func (rs *restores) restoreState(x *extension, now time.Time) (left bool) {
	var d wire.StateDoc
	value := rs.get(StateKey(x.id))
	if value == nil || json.Unmarshal(value, &d) != nil {
		return false
	}
	var last time.Time                 // when the last instance was lost or stopped
	quiet := len(x.announcements) == 0 // all were, and nothing was received
	for _, i := range d.Instances {
		if heartbeat.CheckInstance(i.Instance) != nil {
			continue
		}
		if b := rs.bridges.byName[i.Bridge]; b != nil && b.inventory.Synced() && !b.inventory.Lists(wire.InstanceRef{ID: x.id, Instance: i.Instance}) {
			left = true
			continue
		}
		x.rememberHost(hostOf(i.Bridge, i.Host))
		x.since = time.Time{} // its hosts are known
		if x.locations[i.Instance] == nil {
			rs.setLocation(x, i.Instance, &location{host: i.Host, bridge: i.Bridge})
		}
		mine, known := rs.mon.Instance(x.id, i.Instance)
		quiet = quiet && !known && (i.State == heartbeat.Lost || i.State == heartbeat.Shutdown)
		if i.Since.After(last) {
			last = i.Since
		}
		if !known {
			rs.mon.Adopt(x.id, liveness.Instance{Instance: i.Instance, Version: i.Version, State: i.State,
				Reason: i.Reason, Since: i.Since, Restarts: i.Restarts, Breaker: i.Breaker}, now)
		}
		if !known || mine.State == heartbeat.Ready {
			rs.probes.holdAsWritten(x, i, now)
		}
		if known && i.State == heartbeat.Lost && mine.State != heartbeat.Lost && i.Since.After(mine.LastHeartbeat) {
			// The earlier leader had more information (for example that the bridge is gone), and nothing was
			// received from the instance since. It looks ready here only because its grace period is not over.
			if c, ok := rs.mon.MarkLost(x.id, i.Instance, i.Reason, now); ok {
				rs.changed(c)
			}
		}
	}
	if quiet && !last.IsZero() {
		rs.mon.Silent(x.id, last)
	}
	return left
}
