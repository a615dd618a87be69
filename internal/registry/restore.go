package registry

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

const restoreChunk = 100

// again makes the loop call restoreSome and flush once more.
func (l *loop) again() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// restoreSome restores some extensions from the catalog.
func (l *loop) restoreSome() {
	if !l.view.synced {
		return
	}
	n := 0
	for id := range l.unrestored {
		l.restore(id)
		if n++; n == restoreChunk {
			break
		}
	}
	if len(l.unrestored) > 0 {
		l.again()
	} else {
		l.unrestored = map[string]bool{} // see publisher.take
	}
}

// restore restores one extension from the catalog if its documents have changed.
func (l *loop) restore(id string) {
	if !l.unrestored[id] || !l.view.synced {
		return
	}
	delete(l.unrestored, id)
	x := l.exts[id]
	spec, there := l.view.records[specKey(id)]
	switch {
	case !there && x != nil && x.fromCatalog: // not announced to this replica
		l.drop(x)
		l.names.Set(id, nil)
		return
	case there && (x == nil || x.restoredRevision != spec.seq):
		if x = l.restoreSpec(id, spec); x == nil {
			return
		}
	}
	if x == nil || l.election.epoch == 0 {
		return
	}
	now := time.Now()
	l.mon.Declare(id, now)
	left := l.restoreState(x, now)
	if _, gone := l.removed[instanceKey{id, ""}]; (gone || left) && len(x.announcements) == 0 && l.empty(id) {
		if c, ok := l.mon.Forget(id); ok {
			l.changed(c)
		}
		return
	}
	for _, instance := range slices.Sorted(maps.Keys(x.announcements)) {
		l.considerHandshake(x, instance)
	}
	l.reconsider[id] = true
	l.suspected(id, "", now) // an instance that is ready in the catalog, or in this replica's memory, may have ended while there was no leader
}

// setDropped records whether the leader has dropped an extension. If this replica missed the shutdown notice, it
// would otherwise restore the extension as lost when it is elected.
func (l *loop) setDropped(id string, dropped bool) {
	if x := l.exts[id]; x != nil && x.dropped != dropped {
		x.dropped = dropped
		l.reconsider[id] = true
	}
}

// forgetDropped removes an extension that the leader has dropped, once none of its instances is up.
func (l *loop) forgetDropped(x *extension, health liveness.Extension) {
	for _, i := range health.Instances {
		if i.State != heartbeat.Lost && i.State != heartbeat.Shutdown {
			return
		}
	}
	if c, ok := l.mon.Forget(x.id); ok {
		l.changed(c)
	}
}

// restoreSpec applies a spec of the catalog and adds its extension if necessary.
func (l *loop) restoreSpec(id string, r record) *extension {
	if checkHeartbeatID(id) != nil {
		return nil
	}
	x := l.exts[id]
	if x == nil {
		x = newExtension(id)
		x.fromCatalog = true
	}
	if !x.restore(r.value) {
		return nil
	}
	x.restoredRevision = r.seq
	l.exts[x.id] = x
	l.account(x, x.size()-x.kept) // the spec may have replaced a handshake
	l.nameTools(x)
	return x
}

// writtenRun is the start of a bridge's run according to the catalog.
func (l *loop) writtenRun(bridge string) time.Time {
	r, ok := l.view.records[hostKey(bridge)]
	if !ok || r.deleted {
		return time.Time{}
	}
	if was := l.runs[bridge]; was.seq == r.seq {
		return was.since
	}
	var h wire.Host
	if json.Unmarshal(r.value, &h) != nil {
		h.Since = time.Time{}
	}
	l.runs[bridge] = run{r.seq, h.Since}
	return h.Since
}

// run is the start of a bridge's run according to its document. It is cached because the document is long and has
// many instances.
type run struct {
	seq   uint64
	since time.Time
}

// maxRemoved bounds memory.removed, the removals that the catalog may not contain yet when this replica is elected.
const maxRemoved = 10_000

// restoreState restores the instances of an extension from which this replica has received nothing. It reports
// whether it left out removed ones.
func (l *loop) restoreState(x *extension, now time.Time) (left bool) {
	var d wire.StateDoc
	value := l.view.get(stateKey(x.id))
	if value == nil || json.Unmarshal(value, &d) != nil {
		return false
	}
	for _, i := range d.Instances {
		if heartbeat.CheckInstance(i.Instance) != nil {
			continue
		}
		_, gone := l.removed[instanceKey{x.id, i.Instance}]
		if b := l.bridges[i.Bridge]; b != nil && b.inventory.Synced() && !b.inventory.Lists(wire.InstanceRef{ID: x.id, Instance: i.Instance}) {
			gone = true
		}
		if gone {
			left = true
			continue
		}
		x.rememberHost(hostOf(i.Bridge, i.Host))
		x.since = time.Time{} // its hosts are known
		if x.locations[i.Instance] == nil {
			l.setLocation(x, i.Instance, &location{host: i.Host, bridge: i.Bridge, run: l.writtenRun(i.Bridge)})
		}
		mine, known := l.mon.Instance(x.id, i.Instance)
		if !known {
			l.mon.Adopt(x.id, liveness.Instance{Instance: i.Instance, Version: i.Version, State: i.State,
				Reason: i.Reason, Since: i.Since, Restarts: i.Restarts, Breaker: i.Breaker}, now)
		}
		if !known || mine.State == heartbeat.Ready {
			l.holdAsWritten(x, i, now)
		}
		if known && i.State == heartbeat.Lost && mine.State != heartbeat.Lost && i.Since.After(mine.LastHeartbeat) {
			// The earlier leader had more information (for example that the bridge is gone), and nothing was
			// received from the instance since. It looks ready here only because its grace period is not over.
			if c, ok := l.mon.MarkLost(x.id, i.Instance, i.Reason, now); ok {
				l.changed(c)
			}
		}
	}
	l.dropForgotten(x, &d, now)
	return left
}
