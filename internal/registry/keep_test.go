package registry

import (
	"fmt"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// BenchmarkSweep is what is done with each pulse, whatever happens: while it is done nobody is listened to.
func BenchmarkSweep(b *testing.B) {
	l := largeLoop(100_000)
	for b.Loop() {
		l.sweepExtensions(time.Now())
	}
}

func largeLoop(size int) *loop {
	l := &loop{memory: newMemory(Config{}.withDefaults()), pub: newPublisher()}
	now := time.Now()
	for n := range size {
		x := newExtension(fmt.Sprintf("ext%06d", n))
		l.exts[x.id] = x
		a := &announced{Announce: mesh.Announce{ID: x.id, Version: "1.0.0", Instance: "one", HandshakeHash: "hash"}, at: now, size: 500}
		x.said["one"] = a
		x.tools = &shake{done: true, size: 1300}
		x.shakes[a.shakeKey()] = x.tools
		l.keep(x, x.size())
		l.mon.Declare(x.id, now)
		l.mon.Observe(heartbeat.Beat{ID: x.id, Instance: "one", Seq: 1, State: heartbeat.Ready}, now)
	}
	return l
}

// TestSweep: one round looks at everybody once, and what is counted is what is kept.
func TestSweep(t *testing.T) {
	l := largeLoop(10 * sweepRound)
	old := l.exts["ext000050"]
	old.asked["gone"] = new(asked) // on account of one that the monitor has forgotten
	old.said["two"] = &announced{Announce: mesh.Announce{ID: old.id, Version: "1.0.0", Instance: "two", HandshakeHash: "hash"},
		at: time.Now().Add(-unheardMost - time.Second), size: 500} // never beat
	l.placed(old, "two", &place{bridge: "b"})
	l.keep(old, 100_000) // by tools that were told twice, say
	l.sweepExtensions(time.Now())
	l.drop(l.exts[l.unswept[len(l.unswept)-1]]) // its turn comes all the same
	for range sweepRound - 1 {
		l.sweepExtensions(time.Now())
	}
	if want := (10*sweepRound - 1) * (extensionRoom + 500 + 1300); l.size != want {
		t.Errorf("%d bytes are counted, %d kept", l.size, want)
	}
	if len(l.unswept) != 0 {
		t.Errorf("%d were not looked at in a round", len(l.unswept))
	}
	if old.said["two"] != nil || old.places["two"] != nil || len(l.residents) != 0 || len(old.asked) != 0 {
		t.Errorf("what never beat stays: %v, %v, %v, %v", old.said, old.places, l.residents, old.asked)
	}
}

// TestKeep: what is let go of is no longer counted, at once.
func TestKeep(t *testing.T) {
	l := largeLoop(1)
	x := l.exts["ext000000"]
	for n := range 10 { // one after another, each with other tools
		a := &announced{Announce: mesh.Announce{ID: x.id, Version: "1.0.0", Instance: "one", HandshakeHash: fmt.Sprint(n)}, at: time.Now(), size: 100}
		l.say(x, a)
		s := &shake{done: true, size: 1000}
		x.shakes[a.shakeKey()] = s
		l.keep(x, s.size)
		x.tools = s
		if l.size != x.size() || l.size > extensionRoom+100+2*1300 {
			t.Fatalf("%d bytes are counted, %d kept", l.size, x.size())
		}
	}
	if l.drop(x); l.size != 0 {
		t.Errorf("%d bytes are counted, and nothing is kept", l.size)
	}
}

// TestAskedBounded: an instance that the monitor has made room for another one is not remembered for what was asked on
// its account.
func TestAskedBounded(t *testing.T) {
	l := largeLoop(1)
	x, now := l.exts["ext000000"], time.Now()
	l.mon = heartbeat.NewMonitor(heartbeat.Config{MaxPerID: 10})
	l.mon.Declare(x.id, now)
	l.requested = now
	for n := range 5 * maxSaid {
		b := heartbeat.Beat{ID: x.id, Instance: fmt.Sprintf("i%d", n), Seq: 1, State: heartbeat.Shutdown}
		l.mon.Observe(b, now)
		l.considerAsking(x, &b, now)
	}
	if n := len(x.asked); n > 2*maxSaid || n == 0 {
		t.Errorf("%d are remembered", n)
	}
}
