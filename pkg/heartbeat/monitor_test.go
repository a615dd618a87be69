package heartbeat

import (
	"fmt"
	"slices"
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
		t.Error("a heartbeat without a change is reported")
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

func TestPauseMarksNoneLost(t *testing.T) {
	m := NewMonitor(Config{})
	m.Observe(Beat{ID: "a", IntervalMS: 1000}, at(0))
	tick(m, 0, 2)
	// The process was stopped for a minute; Expire is the first call after it.
	if got := m.Expire(at(62)); len(got) != 0 {
		t.Fatalf("marked lost after a pause: %v", got)
	}
	if got := tick(m, 63, 64); len(got) != 0 {
		t.Fatalf("marked lost before a full grace period of listening: %v", got)
	}
	if got := tick(m, 65, 66); len(got) != 1 || got[0].Kind != WentLost {
		t.Fatalf("not marked lost after it: %v", got)
	}
}

func TestListeningGap(t *testing.T) {
	m := NewMonitor(Config{})
	m.Observe(Beat{ID: "a", IntervalMS: 1000}, at(0))
	tick(m, 0, 1)
	m.ListeningGap(at(1), at(2.5))
	if got := tick(m, 2, 5); len(got) != 0 {
		t.Fatalf("marked lost: %v", got)
	}
	if got := tick(m, 6, 6); len(got) != 1 {
		t.Fatalf("not marked lost: %v", got)
	}
}

func TestDropAndForget(t *testing.T) {
	m := NewMonitor(Config{ForgetAfter: time.Hour, MaxPause: time.Hour})
	m.Observe(Beat{ID: "a", Instance: "n1"}, at(0))
	m.Observe(Beat{ID: "b", Instance: "n1"}, at(0))
	m.Deregister("b", "n1", "maintenance", at(1))
	m.Declare("c", at(0))
	beat := func(s float64) { m.Observe(Beat{ID: "a", Instance: "n2"}, at(s)) }
	var seen []string
	for s := 10.0; s < 4000; s += 10 {
		beat(s)
		for _, c := range m.Expire(at(s)) {
			seen = append(seen, c.String())
		}
	}
	want := []string{
		"a/n1: ready → lost (no heartbeat for 50s)",
		"a/n1: dropped (gone for 10m0s)",
		"c: forgotten (no sign of life for 1h0m0s)",
		"b: forgotten (no sign of life for 1h0m9s)",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("got  %q\nwant %q", seen, want)
	}
}

func TestIntervalIsClamped(t *testing.T) {
	for ms, want := range map[int64]time.Duration{
		0: 15 * time.Second, -1: 15 * time.Second, 1: time.Second, 999: time.Second, 1500: 1500 * time.Millisecond,
		300_001: 5 * time.Minute, 1 << 62: 5 * time.Minute,
	} {
		m := NewMonitor(Config{})
		m.Observe(Beat{ID: "a", IntervalMS: ms}, at(0))
		if i, _ := m.Instance("a", ""); i.Interval != want {
			t.Errorf("interval_ms %d is %v, want %v", ms, i.Interval, want)
		}
	}
}

func TestMissedHeartbeatsAndNewRuns(t *testing.T) {
	m := NewMonitor(Config{})
	for n, c := range []struct {
		beat   Beat
		missed uint64
		newRun bool
	}{
		{Beat{Seq: 7}, 0, false},
		{Beat{Seq: 8}, 0, false},
		{Beat{Seq: 8}, 0, false}, // the same again
		{Beat{Seq: 12}, 3, false},
		{Beat{Seq: 1}, 0, true},
		{Beat{Seq: 2}, 0, false},
		{Beat{UptimeSecs: 50}, 0, false}, // a service without sequence numbers
		{Beat{UptimeSecs: 65}, 0, false},
		{Beat{UptimeSecs: 3}, 0, true},
		{Beat{UptimeSecs: 1, Restarts: 1}, 0, false}, // the bridge itself reports the new run
	} {
		c.beat.ID = "a"
		got, _ := m.Observe(c.beat, at(float64(n)))
		if got.Missed != c.missed || got.NewRun != c.newRun {
			t.Errorf("heartbeat %d: missed %d, newRun %v; want %d, %v", n, got.Missed, got.NewRun, c.missed, c.newRun)
		}
	}
	if i, _ := m.Instance("a", ""); i.Missed != 3 || i.NewRuns != 2 {
		t.Errorf("in total: %d missed, %d new runs", i.Missed, i.NewRuns)
	}
}

// TestChangesAreReported: changes that readers of the catalog see are reported, counters are not.
func TestChangesAreReported(t *testing.T) {
	retry := at(100)
	m := NewMonitor(Config{})
	for n, c := range []struct {
		beat Beat
		kind Kind // "" for nothing
	}{
		{Beat{State: Spawning}, New},
		{Beat{State: Ready}, Moved},
		{Beat{State: Ready, Calls: 5, Inflight: 1, Errors: 1, UptimeSecs: 9}, ""},
		{Beat{State: Ready, Version: "1.0.1"}, Detail},
		{Beat{State: Ready, Version: "1.0.1", Reason: "warming up"}, Detail},
		{Beat{State: Ready, Version: "1.0.1", Breaker: &Breaker{State: BreakerOpen, RetryAt: &retry}}, Detail},
		{Beat{State: Ready, Version: "1.0.1", Breaker: &Breaker{State: BreakerOpen, RetryAt: &retry}}, ""},
		{Beat{State: Restarting, Version: "1.0.1", Restarts: 1}, Moved},
	} {
		c.beat.ID = "a"
		got, ok := m.Observe(c.beat, at(float64(n)))
		if ok != (c.kind != "") || ok && got.Kind != c.kind {
			t.Errorf("heartbeat %d: %v %v, want %q", n, got, ok, c.kind)
		}
		if e, _ := m.Extension("a"); n == 5 && e.Available {
			t.Error("available with an open breaker")
		}
	}
}

func TestHold(t *testing.T) {
	m := NewMonitor(Config{})
	state := func() State { i, _ := m.Instance("a", ""); return i.State }
	beat := func(s State, sec float64) { m.Observe(Beat{ID: "a", State: s}, at(sec)) }
	beat(Ready, 0)
	m.Hold("a", "", "not answering", at(1))
	beat(Ready, 2)
	if state() != Lost {
		t.Error("a heartbeat ended the hold")
	}
	m.Release("a", "", at(3))
	if state() != Ready {
		t.Error("the release did not end the hold")
	}
	m.Hold("a", "", "not answering", at(4))
	beat(Restarting, 5)
	if state() != Restarting {
		t.Error("the owner's own report did not end the hold")
	}
	beat(Ready, 6)
	m.MarkLost("a", "", "its host is gone", at(7))
	if state() != Lost {
		t.Error("not marked lost")
	}
	beat(Ready, 8)
	if state() != Ready {
		t.Error("a heartbeat did not bring the lost instance back")
	}
}

// TestAdopt: an instance from another registry's catalog is marked lost only after a full grace period.
func TestAdopt(t *testing.T) {
	m := NewMonitor(Config{Interval: time.Second})
	m.Adopt("a", Instance{Instance: "n1", State: Ready, Since: at(-100), Version: "1.0.0"}, at(0))
	m.Adopt("a", Instance{Instance: "n2", State: Lost, Reason: "gone", Since: at(-50)}, at(0))
	m.Observe(Beat{ID: "b", Instance: "n1", State: Draining}, at(0))
	m.Adopt("b", Instance{Instance: "n1", State: Ready}, at(0)) // a heartbeat was received already: no change
	e, _ := m.Extension("a")
	if e.State != Ready || !e.Since.Equal(at(-100)) || len(e.Instances) != 2 || e.Instances[1].Reason != "gone" {
		t.Errorf("adopted: %+v", e)
	}
	if e, _ := m.Extension("b"); e.State != Draining {
		t.Errorf("the adopted state replaced that of a heartbeat: %+v", e)
	}
	if got := tick(m, 0, 2); len(got) != 0 {
		t.Errorf("marked lost too early: %v", got)
	}
	if got := tick(m, 3, 4); len(got) != 2 {
		t.Errorf("marked lost: %v", got)
	}
}

// TestBounds: hostile heartbeats cannot grow a Monitor without limit, and cannot prevent a new instance from
// replacing a lost one.
func TestBounds(t *testing.T) {
	m := NewMonitor(Config{Max: 10, MaxPerID: 4, Interval: time.Second, MaxPause: time.Hour})
	for n := range 100 {
		m.Observe(Beat{ID: "a", Instance: fmt.Sprint(n)}, at(0))
		m.Observe(Beat{ID: fmt.Sprint("x", n)}, at(0))
	}
	_, instances := m.Counts()
	if instances[Ready] != 10 || m.Refused() != 190 {
		t.Errorf("%d instances, %d refused", instances[Ready], m.Refused())
	}
	m.Forget("x0")
	m.Expire(at(10))
	if c, ok := m.Observe(Beat{ID: "a", Instance: "new"}, at(11)); !ok || c.Kind != New {
		t.Errorf("no room made: %v", c)
	}
	if e, _ := m.Extension("a"); len(e.Instances) != 4 {
		t.Errorf("%d instances", len(e.Instances))
	}
}

func BenchmarkObserve(b *testing.B) {
	for _, size := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("instances=%d", size), func(b *testing.B) {
			m := NewMonitor(Config{})
			beats := make([]Beat, size)
			for n := range beats {
				beats[n] = Beat{ID: fmt.Sprint("e", n/10), Instance: fmt.Sprint("n", n%10), Seq: 1, State: Ready}
				m.Observe(beats[n], at(0))
			}
			now, n := at(0), 0
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(15 * time.Second / time.Duration(size)) // every instance once in 15 s
				beats[n].Seq++
				m.Observe(beats[n], now)
				if n = (n + 1) % size; n%(size/10) == 0 {
					m.Expire(now)
				}
			}
		})
	}
}
