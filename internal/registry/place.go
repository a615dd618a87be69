package registry

import (
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// place is where an instance runs: as it announced, or as the catalog said when this replica took over.
type place struct {
	host, bridge string
	run          time.Time // of its bridge's run when the instance was heard last; zero: not known
}

// runOf is the start of a bridge's run, as it reports it; zero for one that does not report. Its clock is only
// compared with itself: another start is another run.
func (l *loop) runOf(bridge string) time.Time {
	if b := l.bridges[bridge]; b != nil && b.host != nil {
		return b.host.Since
	}
	return time.Time{}
}

// placed notes where an instance of x was heard.
func (l *loop) placed(x *extension, instance, host, bridge string) {
	x.places[strings.Clone(instance)] = &place{host: host, bridge: bridge, run: l.runOf(bridge)}
}

// heardAt notes that an instance is of its bridge's present run: it beats.
func (l *loop) heardAt(x *extension, instance string) {
	if p := x.places[instance]; p != nil && p.bridge != "" {
		p.run = l.runOf(p.bridge)
	}
}

// relist has the instances looked at whose bridges have reported others than before, in one go: when a registry begins,
// all bridges do so at once.
//
// The first report of a bridge may come after announces of what it runs: those are of the run that it reports. What is
// gone already is of one before, which died before it could say so; if it is not, its next beat says it.
func (l *loop) relist() {
	if len(l.relisted) == 0 {
		return
	}
	for id, x := range l.exts {
		for instance, p := range x.places {
			first, is := l.relisted[p.bridge]
			if !is {
				continue
			}
			l.reconsider[id] = true
			if !first || !p.run.IsZero() {
				continue
			}
			p.run = l.runOf(p.bridge)
			if i, ok := l.mon.Instance(id, instance); ok && (i.State == heartbeat.Lost || i.State == heartbeat.Shutdown) {
				p.run = unreported
			}
		}
	}
	clear(l.relisted)
}

// unreported is a run that no bridge has reported.
var unreported = time.Unix(0, 1)

// former reports whether an instance is of an earlier run of its bridge: a bridge's name is its own while it lives,
// so one that began anew under that name has left nothing behind that still runs.
func (l *loop) former(x *extension, instance string) bool {
	p := x.places[instance]
	if p == nil || p.bridge == "" || p.run.IsZero() {
		return false
	}
	run := l.runOf(p.bridge)
	return !run.IsZero() && !run.Equal(p.run)
}

// begunAnew takes in that a bridge began another run. Instances of the one before are dropped as soon as they are
// gone, so that they do not stand beside their successors, better than a failed or a gated one. Those that look
// alive still are asked, which is quicker than to wait for the beats that they will miss.
func (l *loop) begunAnew(b *bridge, now time.Time) {
	if b.gone {
		b.gone, b.changed = false, now
		l.markSkills(b)
	}
	b.silent = 0
	for id, x := range l.exts {
		for instance, p := range x.places {
			if p.bridge != b.name || !l.former(x, instance) {
				continue
			}
			l.reconsider[id] = true
			if i, ok := l.mon.Instance(id, instance); ok && i.State == heartbeat.Ready && l.leading() {
				l.probe(x, instance, now)
			}
		}
	}
}

// unlisted reports whether an instance is of an extension that its bridge, which is there, says that it runs no more: its
// good-bye was not heard. Of a bridge that is gone the last report need not have been.
func (l *loop) unlisted(x *extension, instance string) bool {
	p := x.places[instance]
	if p == nil || p.bridge == "" {
		return false
	}
	b := l.bridges[p.bridge]
	return b != nil && b.reported && !b.gone && b.host.Extensions != nil && b.host.Since.Equal(p.run) &&
		!slices.Contains(b.host.Extensions, x.id)
}

// dropFormer drops the instances of x that are gone and whose bridge has begun anew since. The last one stays: that
// an extension was there and is lost is what somebody who misses it has to read. Not so where its bridge, in the same
// run, says that it runs it no more: then it is dropped, and the extension forgotten if nothing else is left of it.
func (l *loop) dropFormer(x *extension, how heartbeat.Extension) {
	left := len(how.Instances)
	for _, i := range how.Instances {
		gone := i.State == heartbeat.Lost || i.State == heartbeat.Shutdown
		unheard := i.LastBeat.IsZero() && x.said[i.Instance] == nil // known from the catalog alone
		unlisted := (unheard || gone) && i.State != heartbeat.Shutdown && l.unlisted(x, i.Instance)
		if !unlisted && (!gone || left < 2 || !l.former(x, i.Instance)) {
			continue
		}
		if c, ok := l.mon.Remove(x.id, i.Instance, time.Now()); ok {
			l.changed(c)
			left--
		}
	}
	if left == 0 && len(how.Instances) > 0 && l.empty(x.id) {
		if c, ok := l.mon.Forget(x.id); ok {
			l.changed(c)
		}
	}
}

// dropForgotten drops what an earlier leader has dropped and this replica, which did not ask, still believes in.
func (l *loop) dropForgotten(x *extension, d *mesh.StateDoc, now time.Time) {
	shown := map[string]bool{}
	for _, i := range d.Instances {
		shown[i.Instance] = true
	}
	for instance := range x.places {
		if shown[instance] || !l.former(x, instance) {
			continue
		}
		if c, ok := l.mon.Remove(x.id, instance, now); ok {
			l.changed(c)
		}
	}
}
