package heartbeat

import (
	"container/heap"
	"time"
)

// Expire says what the passing of time changed: instances lost, dropped, extensions forgotten. Call it about once
// a second, after the beats that arrived before now were observed. A gap of more than Config.MaxPause since the
// last call means that this process did not run, or that the caller could not vouch for its hearing, and counts
// as time not listened. A now before that of the last call is ignored.
func (m *Monitor) Expire(now time.Time) []Change {
	m.listen(now)
	if now.Before(m.ticked) {
		return nil
	}
	if !m.ticked.IsZero() && now.Sub(m.ticked) > m.cfg.MaxPause {
		m.Deaf(m.ticked, now)
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

// Deaf tells the Monitor that it could not hear between from and to. Nobody is condemned for silence before a
// full grace period has passed since to.
func (m *Monitor) Deaf(from, to time.Time) {
	if to.After(from) && to.After(m.listening) {
		m.listening = to
	}
}

// Listening is the time since when the Monitor has heard without interruption; zero before it was first used.
func (m *Monitor) Listening() time.Time { return m.listening }

func (m *Monitor) listen(now time.Time) {
	if m.listening.IsZero() {
		m.listening = now
	}
}

// gone reports whether i is in a state that only a sign of life can end.
func (i *instance) gone() bool { return i.State == Lost || i.State == Shutdown }

// deadline is when i's timer should fire next. While i is gone that is when it may be dropped; one that may not,
// since no other is ready, is looked at again after a tenth of DropAfter.
func (i *instance) deadline(m *Monitor) time.Time {
	if i.gone() {
		return i.Since.Add(m.cfg.DropAfter)
	}
	return i.silentSince(m).Add(i.grace)
}

// silentSince is the last moment at which i may have given a sign that was not heard.
func (i *instance) silentSince(m *Monitor) time.Time {
	if i.heard.Before(m.listening) {
		return m.listening
	}
	return i.heard
}

// check is what an instance's timer does: it moves on, or is armed again for a deadline that has grown since.
func (m *Monitor) check(i *instance, now time.Time) (Change, bool) {
	if at := i.deadline(m); at.After(now) {
		m.rearm(&i.timer, at)
		return Change{}, false
	}
	if !i.gone() {
		c, ok := m.condemn(i, "no beat for "+now.Sub(i.heard).Round(time.Second).String(), now)
		m.rearm(&i.timer, i.deadline(m))
		return c, ok
	}
	others := i.ext.count[Ready] > 0
	forgotten := m.cfg.ForgetAfter > 0 && now.Sub(i.Since) >= m.cfg.ForgetAfter && len(i.ext.instances) > 1
	silent := !i.Held || now.Sub(i.silentSince(m)) > i.grace // one on hold may beat on
	if (others || forgotten) && silent {
		return m.drop(i, "gone for "+now.Sub(i.Since).Round(time.Second).String(), now), true
	}
	m.rearm(&i.timer, now.Add(m.cfg.DropAfter/10+1))
	return Change{}, false
}

// checkForget is what an extension's timer does.
func (m *Monitor) checkForget(x *extension, now time.Time) (Change, bool) {
	at := x.sign.Add(m.cfg.ForgetAfter)
	if at.After(now) {
		m.rearm(&x.timer, at)
		return Change{}, false
	}
	if len(x.instances) > x.count[Lost]+x.count[Shutdown] {
		m.rearm(&x.timer, now.Add(m.cfg.ForgetAfter/10+1))
		return Change{}, false
	}
	return m.forget(x, "no sign of life for "+now.Sub(x.sign).Round(time.Second).String()), true
}

func (m *Monitor) arm(t *timer, at time.Time) {
	switch {
	case t.index < 0:
		t.at = at
		heap.Push(&m.due, t)
	case at.Before(t.at): // a later deadline is found out when the earlier one fires: beats do not touch the heap
		t.at = at
		heap.Fix(&m.due, t.index)
	}
}

func (m *Monitor) disarm(t *timer) {
	if t.index >= 0 {
		heap.Remove(&m.due, t.index)
	}
}

func (m *Monitor) rearm(t *timer, at time.Time) {
	t.at = at
	heap.Fix(&m.due, t.index)
}

// A timer is an entry of the heap of deadlines. A heap and not a wheel: a beat never touches it (see arm), so
// its log n is paid once a grace period per instance, and one that holds far and near deadlines alike needs no
// tuning.
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

// Push and Pop are for container/heap.
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
