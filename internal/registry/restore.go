package registry

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// A standby keeps up with the specs that the leader writes, so that it knows their tools and names when it is
// elected; a new leader besides takes over what the catalog says of instances that it has not heard. Both are
// done in small pieces between other events, for a catalog of ten thousand extensions takes a second to read.

const restoreChunk = 100

// again asks the loop to come back for more of what is done in pieces.
func (l *loop) again() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// restoreSome takes over some of what the catalog says.
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

// restore takes over what the catalog says of one extension, if there is news in it.
func (l *loop) restore(id string) {
	if !l.unrestored[id] || !l.view.synced {
		return
	}
	delete(l.unrestored, id)
	x := l.exts[id]
	spec, there := l.view.records[specKey(id)]
	switch {
	case !there && x != nil && x.legacy: // of an extension that is known from the catalog alone
		l.drop(x)
		l.names.Set(id, nil)
		return
	case there && (x == nil || x.mirrored != spec.seq):
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
	if _, gone := l.removed[removal{id, ""}]; (gone || left) && len(x.said) == 0 && l.empty(id) {
		if c, ok := l.mon.Forget(id); ok {
			l.changed(c)
		}
		return
	}
	for _, instance := range slices.Sorted(maps.Keys(x.said)) {
		l.considerHandshake(x, instance)
	}
	l.reconsider[id] = true
	l.suspected(id, "", now) // what is ready in the catalog, or in this replica's memory, may have ended while nobody led
}

// disowned notes whether the leader has dropped an extension: its good-bye need not have been heard by this replica, which
// would bring it back as lost when it is elected.
func (l *loop) disowned(id string, dropped bool) {
	if x := l.exts[id]; x != nil && x.dropped != dropped {
		x.dropped = dropped
		l.reconsider[id] = true
	}
}

// dropDisowned forgets an extension that a leader has dropped, once nothing of it looks alive.
func (l *loop) dropDisowned(x *extension, how heartbeat.Extension) {
	for _, i := range how.Instances {
		if i.State != heartbeat.Lost && i.State != heartbeat.Shutdown {
			return
		}
	}
	if c, ok := l.mon.Forget(x.id); ok {
		l.changed(c)
	}
}

// restoreSpec takes over a spec as it stands, making its extension known if need be.
func (l *loop) restoreSpec(id string, r record) *extension {
	if checkBeatID(id) != nil {
		return nil
	}
	x := l.exts[id]
	if x == nil {
		x = newExtension(id)
		x.legacy = true
	}
	if !x.restore(r.value) {
		return nil
	}
	x.mirrored = r.seq
	l.exts[x.id] = x
	l.keep(x, x.size()-x.kept) // a handshake may have been replaced by what is written of it
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
	var h mesh.Host
	if json.Unmarshal(r.value, &h) != nil {
		h.Since = time.Time{}
	}
	l.runs[bridge] = run{r.seq, h.Since}
	return h.Since
}

// run is the start of a bridge's run as its document says it, which is long: it is not read for each of its instances.
type run struct {
	seq   uint64
	since time.Time
}

// removal is who said good-bye for good; without an instance, it is all of an extension. The catalog need not know it
// yet when another replica is elected, or the same one again.
type removal struct{ id, instance string }

const maxRemoved = 10_000

// restoreState takes over the instances of an extension that this replica has not heard. It reports whether some are
// left out whose good-bye it has heard.
func (l *loop) restoreState(x *extension, now time.Time) (left bool) {
	var d mesh.StateDoc
	value := l.view.get(stateKey(x.id))
	if value == nil || json.Unmarshal(value, &d) != nil {
		return false
	}
	for _, i := range d.Instances {
		if heartbeat.CheckInstance(i.Instance) != nil {
			continue
		}
		if _, gone := l.removed[removal{x.id, i.Instance}]; gone {
			left = true
			continue
		}
		x.rememberHost(hostOf(i.Bridge, i.Host))
		x.since = time.Time{} // its hosts are known
		if x.places[i.Instance] == nil {
			l.placed(x, i.Instance, &place{host: i.Host, bridge: i.Bridge, run: l.writtenRun(i.Bridge)})
		}
		mine, known := l.mon.Instance(x.id, i.Instance)
		if !known {
			l.mon.Adopt(x.id, heartbeat.Instance{Instance: i.Instance, Version: i.Version, State: i.State,
				Reason: i.Reason, Since: i.Since, Restarts: i.Restarts, Breaker: i.Breaker}, now)
		}
		if !known || mine.State == heartbeat.Ready {
			l.holdAsWritten(x, i, now)
		}
		if known && i.State == heartbeat.Lost && mine.State != heartbeat.Lost && i.Since.After(mine.LastBeat) {
			// The leader knew more (its bridge is gone, say), and nothing was heard of the instance since: to
			// this replica it looks alive only because its grace is not over yet.
			if c, ok := l.mon.MarkLost(x.id, i.Instance, i.Reason, now); ok {
				l.changed(c)
			}
		}
	}
	l.dropForgotten(x, &d, now)
	return left
}
