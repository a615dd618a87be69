package heartbeat

import (
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at is t0 plus some seconds.
func at(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

// tick calls Expire once a second from one time to another and returns what changed.
func tick(m *Monitor, from, to float64) []Change {
	var out []Change
	for s := from; s <= to; s++ {
		out = append(out, m.Expire(at(s))...)
	}
	return out
}

func TestLostAndBack(t *testing.T) {
	m := NewMonitor(Config{})
	c, ok := m.Observe(Beat{ID: "weather", Instance: "n1"}, at(0))
	if !ok || c.Kind != New || c.To != Ready || c.Best != Ready {
		t.Fatalf("first beat: %+v, %v", c, ok)
	}
	if _, ok := m.Observe(Beat{ID: "weather", Instance: "n1"}, at(1)); ok {
		t.Error("a beat that says nothing new is reported")
	}
	if got := tick(m, 1, 45); len(got) != 0 {
		t.Fatalf("before the grace is over: %v", got)
	}
	got := tick(m, 46, 46)
	if len(got) != 1 || got[0].Kind != WentLost || got[0].Silence != 45*time.Second || got[0].Best != Lost {
		t.Fatalf("after it: %v", got)
	}
	c, ok = m.Observe(Beat{ID: "weather", Instance: "n1"}, at(50))
	if !ok || c.Kind != CameBack || c.From != Lost || c.Best != Ready {
		t.Fatalf("back: %+v", c)
	}
}

func TestPauseCondemnsNobody(t *testing.T) {
	m := NewMonitor(Config{})
	m.Observe(Beat{ID: "a", IntervalMS: 1000}, at(0))
	tick(m, 0, 2)
	// Stopped for a minute; the first thing the thawed process does is to look at the clock.
	if got := m.Expire(at(62)); len(got) != 0 {
		t.Fatalf("condemned after a pause: %v", got)
	}
	if got := tick(m, 63, 64); len(got) != 0 {
		t.Fatalf("condemned before a full grace of listening: %v", got)
	}
	if got := tick(m, 65, 66); len(got) != 1 || got[0].Kind != WentLost {
		t.Fatalf("not condemned after it: %v", got)
	}
}

func TestDeaf(t *testing.T) {
	m := NewMonitor(Config{})
	m.Observe(Beat{ID: "a", IntervalMS: 1000}, at(0))
	tick(m, 0, 1)
	m.Deaf(at(1), at(2.5))
	if got := tick(m, 2, 5); len(got) != 0 {
		t.Fatalf("condemned: %v", got)
	}
	if got := tick(m, 6, 6); len(got) != 1 {
		t.Fatalf("not condemned: %v", got)
	}
}
