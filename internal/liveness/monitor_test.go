package liveness

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
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
	c, ok := m.Observe(heartbeat.Message{ID: "weather", Instance: "n1"}, at(0))
	if !ok || c.Kind != New || c.To != heartbeat.Ready || c.Best != heartbeat.Ready {
		t.Fatalf("first beat: %+v, %v", c, ok)
	}
	if _, ok := m.Observe(heartbeat.Message{ID: "weather", Instance: "n1"}, at(1)); ok {
		t.Error("a heartbeat without a change is reported")
	}
	if got := tick(m, 1, 45); len(got) != 0 {
		t.Fatalf("before the grace is over: %v", got)
	}
	got := tick(m, 46, 46)
	if len(got) != 1 || got[0].Kind != WentLost || got[0].Silence != 45*time.Second || got[0].Best != heartbeat.Lost {
		t.Fatalf("after it: %v", got)
	}
	c, ok = m.Observe(heartbeat.Message{ID: "weather", Instance: "n1"}, at(50))
	if !ok || c.Kind != CameBack || c.From != heartbeat.Lost || c.Best != heartbeat.Ready {
		t.Fatalf("back: %+v", c)
	}
}

func TestPauseMarksNoneLost(t *testing.T) {
	m := NewMonitor(Config{})
	m.Observe(heartbeat.Message{ID: "a", IntervalMS: 1000}, at(0))
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
	m.Observe(heartbeat.Message{ID: "a", IntervalMS: 1000}, at(0))
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
	m.Observe(heartbeat.Message{ID: "a", Instance: "n1"}, at(0))
	m.Observe(heartbeat.Message{ID: "b", Instance: "n1"}, at(0))
	m.Deregister("b", "n1", "maintenance", at(1))
	m.Declare("c", at(0))
	beat := func(s float64) { m.Observe(heartbeat.Message{ID: "a", Instance: "n2"}, at(s)) }
	var seen []string
	for s := 10.0; s < 4000; s += 10 {
		beat(s)
		for _, c := range m.Expire(at(s)) {
			seen = append(seen, fmt.Sprintf("%s/%s %s %s→%s: %s", c.ID, c.Instance, c.Kind, c.From, c.To, c.Reason))
		}
	}
	want := []string{
		"a/n1 lost ready→lost: no heartbeat for 50s",
		"a/n1 dropped lost→: gone for 10m0s",
		"c/ forgotten →: no sign of life for 1h0m0s",
		"b/ forgotten →: no sign of life for 1h0m9s",
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
		m.Observe(heartbeat.Message{ID: "a", IntervalMS: ms}, at(0))
		if i, _ := m.Instance("a", ""); i.Interval != want {
			t.Errorf("interval_ms %d is %v, want %v", ms, i.Interval, want)
		}
	}
}

func TestNewRuns(t *testing.T) {
	m := NewMonitor(Config{})
	for n, c := range []struct {
		beat   heartbeat.Message
		newRun bool
	}{
		{heartbeat.Message{Seq: 7}, false},
		{heartbeat.Message{Seq: 8}, false},
		{heartbeat.Message{Seq: 8}, false}, // the same again
		{heartbeat.Message{Seq: 12}, false},
		{heartbeat.Message{Seq: 1}, true},
		{heartbeat.Message{Seq: 2}, false},
		{heartbeat.Message{UptimeSecs: 50}, false}, // a service without sequence numbers
		{heartbeat.Message{UptimeSecs: 65}, false},
		{heartbeat.Message{UptimeSecs: 3}, true},
		{heartbeat.Message{UptimeSecs: 1, Restarts: 1}, false}, // the bridge itself reports the new run
	} {
		c.beat.ID = "a"
		got, _ := m.Observe(c.beat, at(float64(n)))
		if got.NewRun != c.newRun {
			t.Errorf("heartbeat %d: newRun %v, want %v", n, got.NewRun, c.newRun)
		}
	}
}

// TestChangesAreReported: changes that readers of the catalog see are reported, counters are not.
func TestChangesAreReported(t *testing.T) {
	retry := at(100)
	m := NewMonitor(Config{})
	for n, c := range []struct {
		beat heartbeat.Message
		kind Kind // "" for nothing
	}{
		{heartbeat.Message{State: heartbeat.Spawning}, New},
		{heartbeat.Message{State: heartbeat.Ready}, Moved},
		{heartbeat.Message{State: heartbeat.Ready, Calls: 5, Inflight: 1, Errors: 1, UptimeSecs: 9}, ""},
		{heartbeat.Message{State: heartbeat.Ready, Version: "1.0.1"}, Detail},
		{heartbeat.Message{State: heartbeat.Ready, Version: "1.0.1", Reason: "warming up"}, Detail},
		{heartbeat.Message{State: heartbeat.Ready, Version: "1.0.1", Breaker: &heartbeat.Breaker{State: heartbeat.BreakerOpen, RetryAt: &retry}}, Detail},
		{heartbeat.Message{State: heartbeat.Ready, Version: "1.0.1", Breaker: &heartbeat.Breaker{State: heartbeat.BreakerOpen, RetryAt: &retry}}, ""},
		{heartbeat.Message{State: heartbeat.Restarting, Version: "1.0.1", Restarts: 1}, Moved},
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
	state := func() heartbeat.State { i, _ := m.Instance("a", ""); return i.State }
	beat := func(s heartbeat.State, sec float64) { m.Observe(heartbeat.Message{ID: "a", State: s}, at(sec)) }
	beat(heartbeat.Ready, 0)
	m.Hold("a", "", "not answering", at(1))
	beat(heartbeat.Ready, 2)
	if state() != heartbeat.Lost {
		t.Error("a heartbeat ended the hold")
	}
	m.Release("a", "", at(3))
	if state() != heartbeat.Ready {
		t.Error("the release did not end the hold")
	}
	m.Hold("a", "", "not answering", at(4))
	beat(heartbeat.Restarting, 5)
	if state() != heartbeat.Restarting {
		t.Error("the owner's own report did not end the hold")
	}
	m.Hold("a", "", "no responders", at(5.1)) // from a ping before that report
	if state() != heartbeat.Restarting {
		t.Error("an instance that restarts is held")
	}
	beat(heartbeat.Ready, 6)
	m.MarkLost("a", "", "its host is gone", at(7))
	if state() != heartbeat.Lost {
		t.Error("not marked lost")
	}
	beat(heartbeat.Ready, 8)
	if state() != heartbeat.Ready {
		t.Error("a heartbeat did not bring the lost instance back")
	}
}

// TestAdopt: an instance from another registry's catalog is marked lost only after a full grace period.
func TestAdopt(t *testing.T) {
	m := NewMonitor(Config{Interval: time.Second})
	m.Adopt("a", Instance{Instance: "n1", State: heartbeat.Ready, Since: at(-100), Version: "1.0.0"}, at(0))
	m.Adopt("a", Instance{Instance: "n2", State: heartbeat.Lost, Reason: "gone", Since: at(-50)}, at(0))
	m.Observe(heartbeat.Message{ID: "b", Instance: "n1", State: heartbeat.Draining}, at(0))
	m.Adopt("b", Instance{Instance: "n1", State: heartbeat.Ready}, at(0)) // a heartbeat was received already: no change
	e, _ := m.Extension("a")
	if e.State != heartbeat.Ready || !e.Since.Equal(at(-100)) || len(e.Instances) != 2 || e.Instances[1].Reason != "gone" {
		t.Errorf("adopted: %+v", e)
	}
	if e, _ := m.Extension("b"); e.State != heartbeat.Draining {
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
		m.Observe(heartbeat.Message{ID: "a", Instance: fmt.Sprint(n)}, at(0))
		m.Observe(heartbeat.Message{ID: fmt.Sprint("x", n)}, at(0))
	}
	_, instances := m.Counts()
	if instances[heartbeat.Ready] != 10 {
		t.Errorf("%d instances are ready, want 10", instances[heartbeat.Ready])
	}
	m.Forget("x0")
	m.Expire(at(10))
	if c, ok := m.Observe(heartbeat.Message{ID: "a", Instance: "new"}, at(11)); !ok || c.Kind != New {
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
			beats := make([]heartbeat.Message, size)
			for n := range beats {
				beats[n] = heartbeat.Message{ID: fmt.Sprint("e", n/10), Instance: fmt.Sprint("n", n%10), Seq: 1, State: heartbeat.Ready}
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

// FuzzObserve: a Monitor processes any heartbeat that can be parsed.
func FuzzObserve(f *testing.F) {
	f.Add([]byte(`{"id":"weather","version":"1.0.0","instance":"n1","seq":3,"interval_ms":15000,"state":"ready"}`))
	f.Add([]byte(`{"id":"weather","uptime_secs":-9223372036854775808,"seq":18446744073709551615}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := heartbeat.Parse(data)
		if err != nil {
			return
		}
		m := NewMonitor(Config{})
		m.Observe(b, t0)
		m.Observe(b, at(1))
		m.Expire(at(2))
		i, ok := m.Instance(b.ID, b.Instance)
		if !ok || i.Interval < heartbeat.MinInterval || i.Interval > heartbeat.MaxInterval || i.Uptime < 0 {
			t.Errorf("%+v", i)
		}
	})
}

// TestRefresh: a sign of life without a state keeps an instance from being lost, and restores a lost one, but not one
// that is held or was shut down.
func TestRefresh(t *testing.T) {
	m := NewMonitor(Config{})
	now := time.Now()
	for instance, state := range map[string]heartbeat.State{"n1": heartbeat.Draining, "held": heartbeat.Ready, "shutdown": heartbeat.Draining} {
		m.Observe(heartbeat.Message{ID: "x", Instance: instance, State: state}, now)
	}
	m.Deregister("x", "shutdown", "", now)
	for range 10 {
		now = now.Add(15 * time.Second)
		m.Refresh("x", "n1", now)
		m.Expire(now)
	}
	if i, _ := m.Instance("x", "n1"); i.State != heartbeat.Draining {
		t.Errorf("refreshed: %s", i.State)
	}
	m.MarkLost("x", "n1", "", now)
	m.Hold("x", "held", "not answering", now)
	for instance, want := range map[string]heartbeat.State{"n1": heartbeat.Draining, "held": heartbeat.Lost, "shutdown": heartbeat.Shutdown} {
		m.Refresh("x", instance, now)
		if i, _ := m.Instance("x", instance); i.State != want {
			t.Errorf("%s: %s, want %s", instance, i.State, want)
		}
	}
	if _, ok := m.Refresh("x", "unknown", now); ok {
		t.Error("an unknown instance was changed")
	}
}
