package liveness

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

var modelSeed = flag.Uint64("model.seed", 0, "seed of TestMonitorModel; 0 draws one")

// model computes the expected state of a Monitor the slow way: every tick looks at every instance.
type model struct {
	cfg       Config
	exts      map[string]*modelExt
	listening time.Time
	ticked    time.Time
}

type modelExt struct {
	lastSign  time.Time
	wasReady  bool // whether any instance was ready before the last tick marked any lost
	instances map[string]*modelInstance
}

type modelInstance struct {
	state, reported heartbeat.State
	lastSign, since time.Time
	grace           time.Duration
	held            bool
	droppable       time.Time // since when the instance may be dropped; zero: it may not
}

func (x *modelExt) best() heartbeat.State {
	best := heartbeat.State("")
	for _, i := range x.instances {
		if i.state.Better(best) {
			best = i.state
		}
	}
	if best == "" {
		return heartbeat.Lost
	}
	return best
}

func (i *modelInstance) setState(s heartbeat.State, now time.Time) {
	if i.state != s {
		i.state, i.since = s, now
	}
}

func (m *model) beat(b heartbeat.Message, now time.Time) {
	x := m.exts[b.ID]
	if x == nil {
		x = &modelExt{instances: map[string]*modelInstance{}}
		m.exts[b.ID] = x
	}
	i := x.instances[b.Instance]
	if i == nil {
		i = &modelInstance{}
		x.instances[b.Instance] = i
	}
	ms := b.IntervalMS
	if ms <= 0 {
		ms = m.cfg.Interval.Milliseconds()
	}
	ms = max(1000, min(ms, 300_000))
	x.lastSign, i.lastSign, i.grace = now, now, time.Duration(float64(ms)*m.cfg.Grace)*time.Millisecond
	if i.reported = b.State; i.reported == "" {
		i.reported = heartbeat.Ready
	}
	if i.reported != heartbeat.Ready {
		i.held = false
	}
	if !i.held {
		i.setState(i.reported, now)
	}
}

// tick advances the model to now. A long time since the last tick is a pause of the Monitor.
func (m *model) tick(now time.Time) {
	if !m.ticked.IsZero() && now.Sub(m.ticked) > m.cfg.MaxPause {
		m.listening = now
	}
	m.ticked = now
	for _, x := range m.exts {
		x.wasReady = x.best() == heartbeat.Ready
		for _, i := range x.instances {
			lastSign := i.lastSign
			if lastSign.Before(m.listening) {
				lastSign = m.listening
			}
			if i.state != heartbeat.Lost && i.state != heartbeat.Shutdown && now.Sub(lastSign) >= i.grace {
				i.setState(heartbeat.Lost, now)
			}
		}
	}
}

// compare checks a Monitor against the model. The Monitor may drop instances a little late, but never early.
func (m *model) compare(t *testing.T, mon *Monitor, now time.Time) {
	t.Helper()
	late := m.cfg.DropAfter/10 + 3*time.Second
	for id, x := range m.exts {
		got, ok := mon.Extension(id)
		gone := !slices.ContainsFunc(slices.Collect(maps.Values(x.instances)), func(i *modelInstance) bool { return i.state != heartbeat.Lost && i.state != heartbeat.Shutdown })
		overdue := now.Sub(x.lastSign) - m.cfg.ForgetAfter
		if !ok {
			if overdue < 0 || !gone {
				t.Fatalf("%v: %s was forgotten too early", now, id)
			}
			delete(m.exts, id)
			continue
		}
		if overdue > m.cfg.ForgetAfter/10+2*time.Second && gone {
			t.Fatalf("%v: %s is not forgotten", now, id)
		}
		have := map[string]Instance{}
		for _, i := range got.Instances {
			have[i.Instance] = i
		}
		several := len(x.instances) > 1
		for name, i := range x.instances {
			lastSign := i.lastSign
			if lastSign.Before(m.listening) {
				lastSign = m.listening
			}
			might := several && (i.state == heartbeat.Lost || i.state == heartbeat.Shutdown) && now.Sub(i.since) >= m.cfg.DropAfter &&
				(x.wasReady || now.Sub(i.since) >= m.cfg.ForgetAfter) && (!i.held || now.Sub(lastSign) > i.grace)
			h, ok := have[name]
			switch {
			case !ok && might:
				delete(x.instances, name)
				continue
			case !ok:
				t.Fatalf("%v: %s/%s is missing, should be %s since %v", now, id, name, i.state, i.since)
			case !might:
				i.droppable = time.Time{}
			case i.droppable.IsZero():
				i.droppable = now
			case now.Sub(i.droppable) > late:
				t.Fatalf("%v: %s/%s is not dropped", now, id, name)
			}
			if h.State != i.state || !h.Since.Equal(i.since) || h.Held != i.held {
				t.Fatalf("%v: %s/%s is %s since %v (held %v), want %s since %v (held %v)", now, id, name, h.State, h.Since, h.Held, i.state, i.since, i.held)
			}
		}
		if len(have) != len(x.instances) {
			t.Fatalf("%v: %s has %d instances, want %d", now, id, len(have), len(x.instances))
		}
		if got.State != x.best() {
			t.Fatalf("%v: %s is %s, want %s", now, id, got.State, x.best())
		}
	}
	m.compareCounts(t, mon, now)
	if n := len(mon.exts); n != len(m.exts) {
		t.Fatalf("%v: %d extensions, want %d", now, n, len(m.exts))
	}
}

// compareCounts checks the counts that the Monitor maintains.
func (m *model) compareCounts(t *testing.T, mon *Monitor, now time.Time) {
	t.Helper()
	extensions, instances := map[heartbeat.State]int{}, map[heartbeat.State]int{}
	for _, x := range m.exts {
		extensions[x.best()]++
		for _, i := range x.instances {
			instances[i.state]++
		}
	}
	if e, i := mon.Counts(); !maps.Equal(e, extensions) || !maps.Equal(i, instances) {
		t.Fatalf("%v: counts %v and %v, want %v and %v", now, e, i, extensions, instances)
	}
}

// TestMonitorModel runs 24 fake hours of heartbeats, silences, wrong intervals, shutdown notices, marks and pauses
// against the model.
func TestMonitorModel(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d (-model.seed)", seed)
	synctest.Test(t, func(t *testing.T) { runModel(t, seed) })
}

// runModel runs a Monitor and the model for four hours of the bubble's clock.
func runModel(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	cfg := Config{Interval: 15 * time.Second, Grace: 3, DropAfter: 10 * time.Minute, ForgetAfter: 2 * time.Hour, MaxPause: 2 * time.Second}
	mon, m := NewMonitor(cfg), &model{cfg: cfg, exts: map[string]*modelExt{}, listening: time.Now()}
	type sender struct {
		id, instance string
		interval     int64
		next         time.Time
		quiet        time.Time // no heartbeats until then
	}
	var senders []*sender
	for n := range 40 {
		s := &sender{id: fmt.Sprint("e", n%12), instance: fmt.Sprint("n", n), next: time.Now()}
		s.interval = []int64{0, 1000, 15_000, 60_000, -5, 1, 1 << 60}[r.IntN(7)]
		senders = append(senders, s)
	}
	states := []heartbeat.State{heartbeat.Ready, heartbeat.Ready, heartbeat.Ready, heartbeat.Ready, heartbeat.Ready, heartbeat.Spawning, heartbeat.Restarting, heartbeat.Failed, heartbeat.Gated, heartbeat.Draining, ""}
	start := time.Now()
	mon.Expire(start)
	m.tick(start)
	for time.Since(start) < 4*time.Hour {
		step := time.Second
		if r.IntN(2000) == 0 {
			step += time.Duration(r.IntN(120)) * time.Second // the process was stopped, or received nothing
		}
		time.Sleep(step) // fake time
		now := time.Now()
		for _, s := range senders {
			if now.Before(s.next) || now.Before(s.quiet) {
				continue
			}
			if r.IntN(300) == 0 {
				s.quiet = now.Add(time.Duration(r.IntN(int(4 * time.Hour))))
				continue
			}
			b := heartbeat.Message{ID: s.id, Instance: s.instance, IntervalMS: s.interval, State: states[r.IntN(len(states))]}
			pause := max(1, min(s.interval, 60_000)/1000)
			s.next = now.Add(time.Duration(pause) * time.Second)
			mon.Observe(b, now)
			m.beat(b, now)
		}
		if r.IntN(20) == 0 {
			s := senders[r.IntN(len(senders))]
			random(r, mon, m, s.id, s.instance, now)
		}
		mon.Expire(now)
		m.tick(now)
		m.compare(t, mon, now)
	}
}

// random applies one random operation other than a heartbeat to the Monitor and the model.
func random(r *rand.Rand, mon *Monitor, m *model, id, instance string, now time.Time) {
	var i *modelInstance
	x := m.exts[id]
	if x != nil {
		i = x.instances[instance]
	}
	switch r.IntN(8) {
	case 0:
		mon.Deregister(id, instance, "bye", now)
		if i != nil {
			x.lastSign, i.held, i.reported = now, false, heartbeat.Shutdown
			i.setState(heartbeat.Shutdown, now)
		}
	case 1:
		mon.MarkLost(id, instance, "its host is gone", now)
		if i != nil && i.state != heartbeat.Shutdown {
			i.setState(heartbeat.Lost, now)
		}
	case 2, 3:
		mon.Hold(id, instance, "not answering", now)
		if i != nil && (i.state == heartbeat.Ready || i.state == heartbeat.Lost) && !i.held {
			i.held = true
			i.setState(heartbeat.Lost, now)
		}
	case 4, 5:
		mon.Release(id, instance, now)
		if i != nil && i.held {
			i.held, i.lastSign = false, now
			i.setState(i.reported, now)
		}
	case 6:
		mon.Declare(id, now)
		if x == nil {
			m.exts[id] = &modelExt{lastSign: now, instances: map[string]*modelInstance{}}
		} else {
			x.lastSign = now
		}
	case 7:
		if r.IntN(10) == 0 {
			mon.Forget(id)
			delete(m.exts, id)
		} else {
			mon.Remove(id, instance, now)
			if x != nil {
				delete(x.instances, instance)
			}
		}
	}
}
