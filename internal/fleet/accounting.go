package fleet

import (
	"time"
)

// store contains the extensions, and counts the memory that they take.
type store struct {
	exts              map[string]*extension
	instancesByBridge map[string]map[instanceKey]struct{} // by bridge, reported or not
	size              int                                 // bytes stored of announcements, tools and reports
	room              int                                 // limit of size
}

func newStore(room int) store {
	return store{exts: map[string]*extension{}, instancesByBridge: map[string]map[instanceKey]struct{}{}, room: room}
}

// The memory of extensions is counted as it changes, because it is limited (see budget.go).

// account adds bytes to the counted memory of x; bytes can be negative.
func (st *store) account(x *extension, bytes int) {
	x.kept += bytes
	st.size += bytes
}

// removeAnnouncement removes the announcement of an instance.
func (st *store) removeAnnouncement(x *extension, instance string) {
	if a := x.announcements[instance]; a != nil {
		delete(x.announcements, instance)
		st.account(x, -a.size)
	}
}

// removeHandshake removes a handshake.
func (st *store) removeHandshake(x *extension, key handshakeKey) {
	if s := x.handshakes[key]; s != nil {
		delete(x.handshakes, key)
		st.account(x, -s.size)
	}
}

// prune removes handshakes to which no announcement refers.
func (st *store) prune(x *extension) {
	var live map[handshakeKey]bool // built on demand: mostly there is only the shown handshake
	for k, s := range x.handshakes {
		if s.pending || s == x.tools {
			continue
		}
		if live == nil {
			live = make(map[handshakeKey]bool, len(x.announcements))
			for _, a := range x.announcements {
				live[a.handshakeKey()] = true
			}
		}
		if !live[k] {
			st.removeHandshake(x, k)
		}
	}
}

// size is about the number of bytes stored of what x has sent.
func (x *extension) size() int {
	sum := extensionRoom
	for _, a := range x.announcements {
		sum += a.size
	}
	for _, s := range x.handshakes {
		sum += s.size
	}
	return sum
}

// sweepTicks is the number of ticks between two sweeps: a minute.
const sweepTicks = 120

// sweepExtensions removes from all extensions what is no longer used.
func (na *natives) sweepExtensions(now time.Time) {
	for _, x := range na.exts {
		na.sweep(x, now)
	}
}

// unlistedFor is how long a leader keeps an extension without instances that it has from the catalog only.
const unlistedFor = time.Minute

// maxUnused is how long unused data is kept: announcements without heartbeats, heartbeats without announcements, and
// removals.
const maxUnused = 10 * time.Minute

// sweep removes what is stored of instances of x that never sent a heartbeat, or were removed since.
func (na *natives) sweep(x *extension, now time.Time) {
	for name, a := range x.announcements {
		if _, ok := na.mon.Instance(x.id, name); !ok && name != "" && now.Sub(a.at) > maxUnused {
			na.removeAnnouncement(x, name)
		}
	}
	na.forgetUnknown(x)
	if na.leads && x.fromCatalog && na.empty(x.id) && now.Sub(x.since) > unlistedFor {
		if c, ok := na.mon.Forget(x.id); ok { // the manifest of a service, which no bridge has any more
			na.changed(c)
			return
		}
	}
	na.dropAlerts(x, noInstance, now)
	sweepRefusals(na, x, now)
	na.prune(x)
	na.account(x, x.size()-x.kept) // corrects drift
}

// forgetUnknown removes the locations and announce requests of instances with neither an announcement nor heartbeats.
func (na *natives) forgetUnknown(x *extension) {
	for name := range x.locations {
		if _, ok := na.mon.Instance(x.id, name); !ok && x.announcements[name] == nil {
			na.removeLocation(x, name)
		}
	}
	for name := range x.requests {
		if _, ok := na.mon.Instance(x.id, name); !ok {
			delete(x.requests, name)
		}
	}
}

// sweepUnannounced removes old unannounced ids and removals.
func (na *natives) sweepUnannounced(now time.Time) {
	for id, s := range na.unannounced {
		if now.Sub(s.seen) > maxUnused {
			delete(na.unannounced, id)
		}
	}
}
