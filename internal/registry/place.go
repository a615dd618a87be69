package registry

import (
	"iter"
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

// residence is an instance where it runs.
type residence struct{ id, instance string }

// placed notes where an instance of x was heard, or is said to be.
func (l *loop) placed(x *extension, instance string, p *place) {
	if was := x.places[instance]; was != nil && was.bridge == p.bridge {
		*was = *p
		return
	}
	instance = strings.Clone(instance)
	l.displaced(x, instance)
	x.places[instance] = p
	if p.bridge == "" {
		return
	}
	residents := l.residents[p.bridge]
	if residents == nil {
		residents = map[residence]struct{}{}
		l.residents[p.bridge] = residents
	}
	residents[residence{x.id, instance}] = struct{}{}
}

// displaced forgets where an instance of x is.
func (l *loop) displaced(x *extension, instance string) {
	p := x.places[instance]
	if p == nil {
		return
	}
	delete(x.places, instance)
	if residents := l.residents[p.bridge]; residents != nil {
		if delete(residents, residence{x.id, instance}); len(residents) == 0 {
			delete(l.residents, p.bridge)
		}
	}
}

// drop forgets x.
func (l *loop) drop(x *extension) {
	for instance := range x.places {
		l.displaced(x, instance)
	}
	l.keep(x, -x.kept)
	delete(l.exts, x.id)
}

// at is what runs at a bridge, or did when it was heard last: with a bridge, the cost of its coming and going must not
// grow with the mesh.
func (l *loop) at(bridge string) iter.Seq2[*extension, string] {
	return func(yield func(*extension, string) bool) {
		for r := range l.residents[bridge] {
			if !yield(l.exts[r.id], r.instance) {
				return
			}
		}
	}
}

// heardAt notes that an instance is of its bridge's present run: it beats.
func (l *loop) heardAt(x *extension, instance string) {
	if p := x.places[instance]; p != nil && p.bridge != "" {
		p.run = l.runOf(p.bridge)
	}
}

// relist has the instances looked at whose bridges have reported others than before.
//
// The first report of a bridge may come after announces of what it runs: those are of the run that it reports. What is
// gone already is of one before, which died before it could say so; if it is not, its next beat says it.
func (l *loop) relist() {
	for bridge, first := range l.relisted {
		for x, instance := range l.at(bridge) {
			l.reconsider[x.id] = true
			p := x.places[instance]
			if !first || !p.run.IsZero() {
				continue
			}
			p.run = l.runOf(bridge)
			if i, ok := l.mon.Instance(x.id, instance); ok && (i.State == heartbeat.Lost || i.State == heartbeat.Shutdown) {
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
	for x, instance := range l.at(b.name) {
		if !l.former(x, instance) {
			continue
		}
		l.reconsider[x.id] = true
		if i, ok := l.mon.Instance(x.id, instance); ok && i.State == heartbeat.Ready && l.leading() {
			l.probe(x, instance, now)
		}
	}
}

// unlisted reports whether an instance is of an extension that the report of its bridge, which is there, does not list: its
// shutdown notice was missed, or its manifest was removed while the bridge did not run. The last report of a bridge that is
// gone may have been missed as well.
func (l *loop) unlisted(x *extension, instance string) bool {
	p := x.places[instance]
	if p == nil || p.bridge == "" {
		return false
	}
	b := l.bridges[p.bridge]
	return b != nil && b.reported && !b.gone && b.host.Extensions != nil && !slices.Contains(b.host.Extensions, x.id)
}

// dropFormer drops the instances of x that are gone and whose bridge has restarted since. The last one stays: somebody who
// misses the extension has to find that it was there and is lost. If the report of its bridge lists the extension no more,
// the last one is dropped too, and the extension is forgotten when no instance is left.
func (l *loop) dropFormer(x *extension, how heartbeat.Extension) {
	left := len(how.Instances)
	for _, i := range how.Instances {
		former := l.former(x, i.Instance)
		inherited := i.LastBeat.IsZero() && x.said[i.Instance] == nil // known from the catalog alone
		gone := i.State == heartbeat.Lost || i.State == heartbeat.Shutdown || inherited && former
		final := i.State == heartbeat.Shutdown && !former // its bridge has just stopped it, and reports that next
		unlisted := (inherited || gone) && !final && l.unlisted(x, i.Instance)
		if !unlisted && (!gone || left < 2 || !former) {
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
