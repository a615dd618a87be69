package liveness

import (
	"strings"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// members are the extensions and instances of a Monitor, with the deadlines at which each may change.
type members struct {
	cfg       Config
	exts      map[string]*extension
	best      map[heartbeat.State]int // extensions, by their best state
	count     map[heartbeat.State]int // instances
	instances int
	due       dueHeap

	check       func(i *instance, now time.Time) (Change, bool)  // at an instance's deadline
	checkForget func(x *extension, now time.Time) (Change, bool) // at an extension's
}

func (m *members) find(id, instance string) *instance {
	if x := m.exts[id]; x != nil {
		return x.instances[instance]
	}
	return nil
}

func (m *members) extension(id string, now time.Time) *extension {
	if x := m.exts[id]; x != nil {
		return x
	}
	if len(m.exts) >= m.cfg.Max {
		return nil
	}
	x := &extension{id: strings.Clone(id), instances: map[string]*instance{}, count: map[heartbeat.State]int{},
		best: heartbeat.Lost, since: now, lastSign: now}
	x.timer = timer{fire: func(now time.Time) (Change, bool) { return m.checkForget(x, now) }, index: -1}
	m.exts[x.id] = x
	m.best[x.best]++
	if m.cfg.ForgetAfter > 0 {
		m.due.arm(&x.timer, now.Add(m.cfg.ForgetAfter))
	}
	return x
}

// add creates an instance without a state, or returns nil if there is no room.
func (m *members) add(id, name string, now time.Time) *instance {
	x := m.extension(id, now)
	if x == nil {
		return nil
	}
	if m.instances >= m.cfg.Max || len(x.instances) >= m.cfg.MaxPerID && !m.makeRoom(x) {
		return nil
	}
	i := &instance{ext: x, lastSign: now, grace: time.Duration(float64(m.cfg.Interval) * m.cfg.Grace)}
	i.Instance.Instance, i.Since, i.Interval = strings.Clone(name), now, m.cfg.Interval
	i.timer = timer{fire: func(now time.Time) (Change, bool) { return m.check(i, now) }, index: -1}
	x.instances[i.Instance.Instance] = i
	m.instances++
	return i
}

// makeRoom drops the instance of x that has been gone longest, if any is gone.
func (m *members) makeRoom(x *extension) bool {
	var oldest *instance
	for _, i := range x.instances {
		if i.gone() && (oldest == nil || i.Since.Before(oldest.Since)) {
			oldest = i
		}
	}
	if oldest == nil {
		return false
	}
	m.drop(oldest, "", oldest.Since)
	return true
}

func (m *members) drop(i *instance, reason string, now time.Time) Change {
	x, wasBest := i.ext, i.ext.best
	delete(x.instances, i.Instance.Instance)
	x.count[i.State]--
	m.count[i.State]--
	m.instances--
	m.due.disarm(&i.timer)
	m.updateBest(x, now)
	return Change{Kind: Dropped, ID: x.id, Instance: i.Instance.Instance, From: i.State, Reason: reason,
		WasBest: wasBest, Best: x.best}
}

func (m *members) forget(x *extension, reason string) Change {
	for _, i := range x.instances {
		m.due.disarm(&i.timer)
		m.count[i.State]--
		m.instances--
	}
	m.best[x.best]--
	m.due.disarm(&x.timer)
	delete(m.exts, x.id)
	return Change{Kind: Forgotten, ID: x.id, Reason: reason, WasBest: x.best}
}

// setState sets the state of i and updates its extension's counts and best state.
func (m *members) setState(i *instance, to heartbeat.State, reason string, now time.Time) {
	i.Reason = clipReason(reason)
	if i.State == to {
		return
	}
	if i.State != "" {
		i.ext.count[i.State]--
		m.count[i.State]--
	}
	i.State, i.Since = to, now
	i.ext.count[to]++
	m.count[to]++
	m.updateBest(i.ext, now)
}

const maxReason = 512 // bytes

// clipReason bounds what is kept of a reason, which others write.
func clipReason(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	return strings.ToValidUTF8(strings.Clone(reason[:maxReason]), "")
}

// updateBest recomputes the best state of x.
func (m *members) updateBest(x *extension, now time.Time) {
	best := heartbeat.Lost // without instances
	if len(x.instances) > 0 {
		best = ""
		for s, n := range x.count {
			if n > 0 && s.Better(best) {
				best = s
			}
		}
	}
	if best != x.best {
		m.best[x.best]--
		m.best[best]++
		x.best, x.since = best, now
	}
}
