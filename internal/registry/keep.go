package registry

import (
	"maps"
	"slices"
	"time"
)

// What a replica keeps of extensions is counted as it comes and goes, since it is limited (see budget.go).

// keep adds to what is counted of x; bytes is negative for what is let go.
func (l *loop) keep(x *extension, bytes int) {
	x.kept += bytes
	l.size += bytes
}

// unsay lets go of what an instance announced.
func (l *loop) unsay(x *extension, instance string) {
	if a := x.said[instance]; a != nil {
		delete(x.said, instance)
		l.keep(x, -a.size)
	}
}

// unshake lets go of a handshake.
func (l *loop) unshake(x *extension, key shakeKey) {
	if s := x.shakes[key]; s != nil {
		delete(x.shakes, key)
		l.keep(x, -s.size)
	}
}

// prune lets go of handshakes that no announce refers to any more.
func (l *loop) prune(x *extension) {
	var live map[shakeKey]bool // only if it is asked for: mostly there is nothing but what is shown
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

// size is about how many bytes x keeps of what it was sent.
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

// sweepRound is in how many pulses all extensions are looked through once: to do it in one go would be, in a large mesh, not
// to listen for a while.
const sweepRound = 120

// sweepExtensions looks through the next of them.
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

// unheardMost is how long what was said is kept of those that never beat, and of strays and good-byes.
const unheardMost = 10 * time.Minute

// sweep lets go of what x has of instances that never beat, or have been dropped since.
func (l *loop) sweep(x *extension, now time.Time) {
	for name, a := range x.said {
		if _, ok := l.mon.Instance(x.id, name); !ok && name != "" && now.Sub(a.at) > unheardMost {
			l.unsay(x, name)
		}
	}
	l.forgetUnknown(x)
	l.dropAlerts(x, noInstance, now)
	l.prune(x)
	l.keep(x, x.size()-x.kept) // for good measure
}

// forgetUnknown lets go of where instances are that neither have announced themselves nor beat, and of how often was asked
// on their account.
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

// sweepStrays lets go of strays and good-byes.
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
