package registry

import (
	"maps"
	"slices"
	"time"
)

// The memory of extensions is counted as it changes, because it is limited (see budget.go).

// account adds bytes to the counted memory of x; bytes can be negative.
func (l *loop) keep(x *extension, bytes int) {
	x.kept += bytes
	l.size += bytes
}

// removeAnnouncement removes the announcement of an instance.
func (l *loop) unsay(x *extension, instance string) {
	if a := x.said[instance]; a != nil {
		delete(x.said, instance)
		l.keep(x, -a.size)
	}
}

// removeHandshake removes a handshake.
func (l *loop) unshake(x *extension, key shakeKey) {
	if s := x.shakes[key]; s != nil {
		delete(x.shakes, key)
		l.keep(x, -s.size)
	}
}

// prune removes handshakes to which no announcement refers.
func (l *loop) prune(x *extension) {
	var live map[shakeKey]bool // built on demand: mostly there is only the shown handshake
	for k, s := range x.shakes {
		if s.pending || s == x.tools {
			continue
		}
		if live == nil {
			live = make(map[shakeKey]bool, len(x.said))
			for _, a := range x.said {
				live[a.shakeKey()] = true
			}
		}
		if !live[k] {
			l.unshake(x, k)
		}
	}
}

// size is about the number of bytes stored of what x has sent.
func (x *extension) size() int {
	sum := extensionRoom
	for _, a := range x.said {
		sum += a.size
	}
	for _, s := range x.shakes {
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
const unheardMost = 10 * time.Minute

// sweep removes what is stored of instances of x that never sent a heartbeat, or were removed since.
func (l *loop) sweep(x *extension, now time.Time) {
	for name, a := range x.said {
		if _, ok := l.mon.Instance(x.id, name); !ok && name != "" && now.Sub(a.at) > unheardMost {
			l.unsay(x, name)
		}
	}
	l.forgetUnknown(x)
	l.dropAlerts(x, noInstance, now)
	l.prune(x)
	l.keep(x, x.size()-x.kept) // corrects drift
}

// forgetUnknown removes the locations and announce requests of instances with neither an announcement nor heartbeats.
func (l *loop) forgetUnknown(x *extension) {
	for name := range x.places {
		if _, ok := l.mon.Instance(x.id, name); !ok && x.said[name] == nil {
			l.displaced(x, name)
		}
	}
	for name := range x.asked {
		if _, ok := l.mon.Instance(x.id, name); !ok {
			delete(x.asked, name)
		}
	}
}

// sweepUnannounced removes old unannounced ids and removals.
func (l *loop) sweepStrays(now time.Time) {
	for who, at := range l.removed {
		if now.Sub(at) > unheardMost {
			delete(l.removed, who)
		}
	}
	for id, s := range l.stray {
		if now.Sub(s.since) > unheardMost {
			delete(l.stray, id)
		}
	}
}
