package instance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestNext applies sequences of events. Each step has the expected result: the state with its reason, or refused.
func TestNext(t *testing.T) {
	type step struct {
		e    Event
		want string
	}
	ev := func(k Kind, reason ...string) Event { return Event{Kind: k, Reason: append(reason, "")[0]} }
	const refused = "refused"
	started := []step{{ev(Begin), "spawning"}, {ev(Serve), "spawning"}, {ev(Ready), "ready"}}
	tests := []struct {
		name     string
		steps    []step
		restarts uint64
	}{
		{"a run becomes ready, ends, and is restarted", append(slices.Clip(started), []step{
			{ev(End, "exit status 3"), "restarting: exit status 3"}, {ev(Begin), "restarting: exit status 3"},
			{ev(Serve), "restarting: exit status 3"}, {ev(Ready), "ready"}}...), 1},
		{"a run that ends is not ready afterwards", append(slices.Clip(started), []step{
			{ev(End, "gone"), "restarting: gone"}, {ev(Ready), refused}, {ev(Denied, "no"), refused}}...), 0},
		{"a run that does not serve yet cannot be ready", []step{{ev(Ready), refused}, {ev(Begin), "spawning"}, {ev(Ready), refused}}, 0},
		{"a run that is not permitted to subscribe is failed until it is", []step{
			{ev(Begin), "spawning"}, {ev(Serve), "spawning"}, {ev(Denied, "ext.x.rpc"), "failed: ext.x.rpc"}, {ev(Ready), "ready"}}, 0},
		{"an instance that ran out of restarts is failed until a retry is ready", []step{
			{ev(Begin), "spawning"}, {ev(End, "boom"), "restarting: boom"}, {ev(Begin), "restarting: boom"},
			{Event{Kind: GaveUp, Reason: "boom", Restarts: 5}, "failed: gave up after 5 restarts: boom"}, {ev(Begin), "failed: gave up after 5 restarts: boom"},
			{ev(Progress, "5 s"), refused}, {ev(Serve), "failed: gave up after 5 restarts: boom"}, {ev(Ready), "ready"}}, 2},
		{"the progress of a start is its reason until it serves", []step{
			{ev(Progress, "early"), refused}, {ev(Begin), "spawning"}, {ev(Progress, "5 s"), "spawning: 5 s"}, {ev(End, "boom"), "restarting: boom"},
			{ev(Begin), "restarting: boom"}, {ev(Progress, "6 s"), "restarting: 6 s; before that: boom"}, {ev(Progress, "7 s"), "restarting: 7 s; before that: boom"},
			{ev(Serve), "restarting: 7 s; before that: boom"}, {ev(Progress, "late"), refused}, {ev(Ready), "ready"}, {ev(Restart), "restarting: restart requested"},
			{ev(Begin), "restarting: restart requested"}, {ev(Progress, "8 s"), "restarting: 8 s"}}, 2},
		{"a program that does not exist is not restarted", []step{
			{ev(Begin), "spawning"}, {Event{Kind: GaveUp, Reason: "no such file", Permanent: true}, "failed: no such file"}}, 0},
		{"a note is shown while the instance is ready", append(slices.Clip(started), []step{
			{ev(Note, "401"), "ready: 401"}, {ev(Note), "ready"}, {ev(End, "gone"), "restarting: gone"}, {ev(Note, "401"), refused}}...), 0},
		{"a restart is shown at once, and the old run is not ready any more", append(slices.Clip(started), []step{
			{ev(Restart), "restarting: restart requested"}, {ev(Ready), refused}, {ev(End, "restart requested"), "restarting: restart requested"},
			{ev(Begin), "restarting: restart requested"}}...), 1},
		{"a drain lasts until a restart and counts no runs", append(slices.Clip(started), []step{
			{ev(Drain), "draining: drain requested"}, {ev(Ready), refused}, {ev(End, "exit status 0"), "draining: drain requested"},
			{ev(Begin), refused}, {ev(Serve), refused}, {Event{Kind: GaveUp, Restarts: 5}, "draining: drain requested"},
			{ev(Restart), "restarting: restart requested"}, {ev(Begin), "restarting: restart requested"}}...), 1},
		{"a drain before the first run", []step{
			{ev(Drain), "draining: drain requested"}, {ev(Begin), refused}, {ev(Restart), "restarting: restart requested"}, {ev(Begin), "spawning"}}, 0},
		{"a gated instance can only be stopped", []step{
			{ev(Gate, "no git"), "gated: no git"}, {ev(Drain), refused}, {ev(Restart), refused}, {ev(Begin), refused}, {ev(Stop), "draining: stopping"}}, 0},
		{"a stop takes precedence over everything, also over a drain", append(slices.Clip(started), []step{
			{ev(Drain), "draining: drain requested"}, {ev(Stop), "draining: stopping"}, {ev(End, "exit status 0"), refused},
			{ev(Restart), refused}, {ev(Begin), refused}, {ev(Ready), refused}, {ev(Stop), refused}, {ev(Leave), "shutdown"},
			{ev(Restart), refused}}...), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s Status
			for i, step := range tt.steps {
				before := s
				var ok bool
				s, ok = s.Next(step.e)
				got := text(s)
				if !ok {
					got = refused
				}
				if got != step.want {
					t.Fatalf("step %d, %v: got %q, want %q", i, step.e.Kind, got, step.want)
				}
				if !ok && s != before {
					t.Fatalf("step %d, %v: a refused event changed %+v to %+v", i, step.e.Kind, before, s)
				}
			}
			if s.Restarts() != tt.restarts {
				t.Errorf("%d restarts, want %d", s.Restarts(), tt.restarts)
			}
		})
	}
}

func text(s Status) string {
	state, reason := s.State()
	if reason == "" {
		return string(state)
	}
	return string(state) + ": " + reason
}

// TestRandomEvents checks what holds after any sequence of events.
func TestRandomEvents(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var s Status
		serving, stopped, drained, gated, left := false, false, false, false, false
		for range 30 {
			e := Event{Kind: Kind(r.IntN(len(kindNames))), Reason: fmt.Sprint(r.IntN(3))}
			next, ok := s.Next(e)
			if ok {
				stopped, left = stopped || e.Kind == Stop, left || e.Kind == Leave
				drained = e.Kind == Drain || drained && e.Kind != Restart
				gated = gated || e.Kind == Gate
				switch e.Kind {
				case Serve:
					serving = true
				case Ready, Denied, Note, Progress:
				default:
					serving = false
				}
			}
			s = next
			state, _ := s.State()
			switch {
			case left && text(s) != "shutdown",
				!left && stopped && text(s) != "draining: stopping",
				!left && !stopped && drained && text(s) != "draining: drain requested",
				!left && !stopped && gated && !drained && state != heartbeat.Gated,
				state == heartbeat.Ready && (!serving || stopped || drained || gated || left):
				t.Fatalf("seed %d: %v leads to %q; serving %v, stopped %v, drained %v, gated %v, left %v", seed, e.Kind, text(s), serving, stopped, drained, gated, left)
			}
		}
	}
}

func TestMachineReportsChanges(t *testing.T) {
	changes := 0
	m := New(func() { changes++ })
	for _, step := range []struct {
		e       Event
		changed bool
	}{
		{Event{Kind: Begin}, false}, // a new instance is spawning already
		{Event{Kind: Serve}, false},
		{Event{Kind: Ready}, true},
		{Event{Kind: Ready}, false},
		{Event{Kind: End, Reason: "gone"}, true},
		{Event{Kind: Begin}, true}, // one restart more
	} {
		before := changes
		if !m.Apply(step.e) {
			t.Errorf("%v was refused", step.e.Kind)
		}
		if got := changes != before; got != step.changed {
			t.Errorf("%v: change reported: %v, want %v", step.e.Kind, got, step.changed)
		}
	}
	if state, reason := m.Status().State(); state != heartbeat.Restarting || reason != "gone" {
		t.Errorf("got %s %q, want restarting, gone", state, reason)
	}
}
