package liveness

import (
	"container/heap"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Expire returns what changed because time passed: instances lost or dropped, extensions removed. Call it about once
// a second, after observing the heartbeats that arrived before now. A gap of more than Config.MaxPause since the last
// call means that this process, or its subscription, was interrupted, and counts as a ListeningGap. A now before the
// last call's is ignored.
func (m *Monitor) Expire(now time.Time) []Change {
	m.listen(now)
	if now.Before(m.ticked) {
		return nil
	}
	if !m.ticked.IsZero() && now.Sub(m.ticked) > m.cfg.MaxPause {
		m.ListeningGap(m.ticked, now)
	}
	m.ticked = now
	var out []Change
	for len(m.due) > 0 && !m.due[0].at.After(now) {
		if c, ok := m.due[0].fire(now); ok {
			out = append(out, c)
		}
	}
	return out
}

// ListeningGap reports that no heartbeat could be received between from and to. No instance is marked lost for
// missing heartbeats before a full grace period has passed since to.
func (m *Monitor) ListeningGap(from, to time.Time) {
	if to.After(from) && to.After(m.listening) {
		m.listening = to
	}
}

// Listening returns the time since which the Monitor has received without a gap; zero before its first use.
func (m *Monitor) Listening() time.Time { return m.listening }

func (m *Monitor) listen(now time.Time) {
	if m.listening.IsZero() {
		m.listening = now
	}
}

// gone reports whether i is in a state that only a heartbeat can end.
func (i *instance) gone() bool { return i.State == heartbeat.Lost || i.State == heartbeat.Shutdown }

// deadline returns when i's timer should fire next. If i is gone, that is when it may be dropped. checkInstance postpones the
// drop by a tenth of DropAfter while no other instance is ready.
func (i *instance) deadline(m *Monitor) time.Time {
	if i.gone() {
		return i.Since.Add(m.cfg.DropAfter)
	}
	return i.silentSince(m).Add(i.grace)
}

// silentSince returns the end of the last time in which a heartbeat of i was received or could have been missed.
func (i *instance) silentSince(m *Monitor) time.Time {
	if i.lastSign.Before(m.listening) {
		return m.listening
	}
	return i.lastSign
}

// checkInstance runs when an instance's timer fires: the state of i changes, or the timer is set to a later deadline.
func (m *Monitor) checkInstance(i *instance, now time.Time) (Change, bool) {
	if at := i.deadline(m); at.After(now) {
		m.due.rearm(&i.timer, at)
		return Change{}, false
	}
	if !i.gone() {
		c, ok := m.markLost(i, "no heartbeat for "+now.Sub(i.lastSign).Round(time.Second).String(), now)
		m.due.rearm(&i.timer, i.deadline(m))
		return c, ok
	}
	others := i.ext.count[heartbeat.Ready] > 0
	forgotten := m.cfg.ForgetAfter > 0 && now.Sub(i.Since) >= m.cfg.ForgetAfter && len(i.ext.instances) > 1
	silent := !i.Held || now.Sub(i.silentSince(m)) > i.grace // the owner of a held instance may still send heartbeats
	if (others || forgotten) && silent {
		return m.drop(i, "gone for "+now.Sub(i.Since).Round(time.Second).String(), now), true
	}
	m.due.rearm(&i.timer, now.Add(m.cfg.DropAfter/10+1))
	return Change{}, false
}

// checkExtension runs when an extension's timer fires.
func (m *Monitor) checkExtension(x *extension, now time.Time) (Change, bool) {
	at := x.lastSign.Add(m.cfg.ForgetAfter)
	if at.After(now) {
		m.due.rearm(&x.timer, at)
		return Change{}, false
	}
	if len(x.instances) > x.count[heartbeat.Lost]+x.count[heartbeat.Shutdown] {
		m.due.rearm(&x.timer, now.Add(m.cfg.ForgetAfter/10+1))
		return Change{}, false
	}
	return m.forget(x, "no sign of life for "+now.Sub(x.lastSign).Round(time.Second).String()), true
}

func (h *dueHeap) arm(t *timer, at time.Time) {
	switch {
	case t.index < 0:
		t.at = at
		heap.Push(h, t)
	case at.Before(t.at): // a later deadline is set when the earlier one fires, so that heartbeats leave the heap alone
		t.at = at
		heap.Fix(h, t.index)
	}
}

func (h *dueHeap) disarm(t *timer) {
	if t.index >= 0 {
		heap.Remove(h, t.index)
	}
}

func (h *dueHeap) rearm(t *timer, at time.Time) {
	t.at = at
	heap.Fix(h, t.index)
}

// A timer is an entry of the heap of deadlines. A heap costs log n only once per grace period and instance, because
// heartbeats do not touch it (see arm), and unlike a timer wheel it needs no tuning for mixed near and far deadlines.
type timer struct {
	at    time.Time
	fire  func(now time.Time) (Change, bool)
	index int // in the heap, -1 outside
}

type dueHeap []*timer

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(a, b int) bool { return h[a].at.Before(h[b].at) }
func (h dueHeap) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].index, h[b].index = a, b
}

// Push is for container/heap.
func (h *dueHeap) Push(t any) {
	t.(*timer).index = len(*h)
	*h = append(*h, t.(*timer))
}

// Pop is for container/heap.
func (h *dueHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
