package registry

import (
	"maps"
	"slices"
	"time"
)

// The memory of extensions is counted as it changes, because it is limited (see budget.go).

// account adds bytes to the counted memory of x; bytes can be negative.
func (l *loop) account(x *extension, bytes int) {
	x.kept += bytes
	l.size += bytes
}

// removeAnnouncement removes the announcement of an instance.
func (l *loop) removeAnnouncement(x *extension, instance string) {
	if a := x.announcements[instance]; a != nil {
		delete(x.announcements, instance)
		l.account(x, -a.size)
	}
}

// removeHandshake removes a handshake.
func (l *loop) removeHandshake(x *extension, key handshakeKey) {
	if s := x.handshakes[key]; s != nil {
		delete(x.handshakes, key)
		l.account(x, -s.size)
	}
}

// prune removes handshakes to which no announcement refers.
func (l *loop) prune(x *extension) {
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
			l.removeHandshake(x, k)
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

// sweepRound is the number of self-checks in which all extensions are swept once. A sweep in one go would block the
// loop in a large mesh.
const sweepRound = 120

// sweepExtensions sweeps the next portion of extensions.
func (l *loop) sweepExtensions(now time.Time) {
	if len(l.unswept) == 0 {
		l.unswept = slices.Collect(maps.Keys(l.exts))
		l.portion = (len(l.unswept) + sweepRound - 1) / sweepRound
	}
	n := min(l.portion, len(l.unswept))
	for _, id := range l.unswept[:n] {
		if x := l.exts[id]; x != nil {
			l.sweep(x, now)
		}
	}
	l.unswept = l.unswept[n:]
}

// maxUnused is how long unused data is kept: announcements without heartbeats, heartbeats without announcements, and
// removals.
const maxUnused = 10 * time.Minute

// sweep removes what is stored of instances of x that never sent a heartbeat, or were removed since.
func (l *loop) sweep(x *extension, now time.Time) {
	for name, a := range x.announcements {
		if _, ok := l.mon.Instance(x.id, name); !ok && name != "" && now.Sub(a.at) > maxUnused {
			l.removeAnnouncement(x, name)
		}
	}
	l.forgetUnknown(x)
	l.dropAlerts(x, noInstance, now)
	l.prune(x)
	l.account(x, x.size()-x.kept) // corrects drift
}

// forgetUnknown removes the locations and announce requests of instances with neither an announcement nor heartbeats.
func (l *loop) forgetUnknown(x *extension) {
	for name := range x.locations {
		if _, ok := l.mon.Instance(x.id, name); !ok && x.announcements[name] == nil {
			l.removeLocation(x, name)
		}
	}
	for name := range x.requests {
		if _, ok := l.mon.Instance(x.id, name); !ok {
			delete(x.requests, name)
		}
	}
}

// sweepUnannounced removes old unannounced ids and removals.
func (l *loop) sweepUnannounced(now time.Time) {
	for key, at := range l.removed {
		if now.Sub(at) > maxUnused {
			delete(l.removed, key)
		}
	}
	for id, s := range l.unannounced {
		if now.Sub(s.since) > maxUnused {
			delete(l.unannounced, id)
		}
	}
}
