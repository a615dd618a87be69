package liveness

import (
	"strings"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func (m *Monitor) find(id, instance string) *instance {
	if x := m.exts[id]; x != nil {
		return x.instances[instance]
	}
	return nil
}

func (m *Monitor) extension(id string, now time.Time) *extension {
	if x := m.exts[id]; x != nil {
		return x
	}
	if len(m.exts) >= m.cfg.Max {
		m.refused++
		return nil
	}
	x := &extension{id: strings.Clone(id), instances: map[string]*instance{}, count: map[heartbeat.State]int{},
		best: heartbeat.Lost, since: now, lastSign: now}
	x.timer = timer{fire: func(now time.Time) (Change, bool) { return m.checkForget(x, now) }, index: -1}
	m.exts[x.id] = x
	m.best[x.best]++
	if m.cfg.ForgetAfter > 0 {
		m.arm(&x.timer, now.Add(m.cfg.ForgetAfter))
	}
	return x
}

// add creates an instance without a state, or returns nil if there is no room.
func (m *Monitor) add(id, name string, now time.Time) *instance {
	x := m.extension(id, now)
	if x == nil {
		return nil
	}
	if m.instances >= m.cfg.Max || len(x.instances) >= m.cfg.MaxPerID && !m.makeRoom(x) {
		m.refused++
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
func (m *Monitor) makeRoom(x *extension) bool {
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

func (m *Monitor) drop(i *instance, reason string, now time.Time) Change {
	x, wasBest := i.ext, i.ext.best
	delete(x.instances, i.Instance.Instance)
	x.count[i.State]--
	m.count[i.State]--
	m.instances--
	m.disarm(&i.timer)
	m.updateBest(x, now)
	return Change{Kind: Dropped, ID: x.id, Instance: i.Instance.Instance, From: i.State, Reason: reason,
		WasBest: wasBest, Best: x.best}
}

func (m *Monitor) forget(x *extension, reason string) Change {
	for _, i := range x.instances {
		m.disarm(&i.timer)
		m.count[i.State]--
		m.instances--
	}
	m.best[x.best]--
	m.disarm(&x.timer)
	delete(m.exts, x.id)
	return Change{Kind: Forgotten, ID: x.id, Reason: reason, WasBest: x.best}
}
