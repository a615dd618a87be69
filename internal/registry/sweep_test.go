package registry

import (
	"fmt"
	"math/rand/v2"
	"reflect"
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
	l := &loop{memory: newMemory(heartbeat.Config{}), pub: newPublisher()}
	now := time.Now()
	for n := range size {
		x := newExtension(fmt.Sprintf("ext%06d", n))
		l.exts[x.id] = x
		a := &announced{Announce: mesh.Announce{ID: x.id, Version: "1.0.0", Instance: "one", HandshakeHash: "hash"}, at: now, size: 500}
		x.said["one"] = a
		x.tools = &shake{done: true, size: 1300}
		x.shakes[a.shakeKey()] = x.tools
		l.mon.Declare(x.id, now)
		l.mon.Observe(heartbeat.Beat{ID: x.id, Instance: "one", Seq: 1, State: heartbeat.Ready}, now)
	}
	return l
}

// TestSweep: one round looks at everybody once, and what is counted is what is kept.
func TestSweep(t *testing.T) {
	l := largeLoop(10 * sweepRound)
	old := l.exts["ext000050"]
	old.said["two"] = &announced{Announce: mesh.Announce{ID: old.id, Version: "1.0.0", Instance: "two", HandshakeHash: "hash"},
		at: time.Now().Add(-memoryOf - time.Second), size: 500} // never beat
	l.placed(old, "two", &place{bridge: "b"})
	l.keep(old, 100_000) // by tools that were told twice, say
	l.drop(l.exts["ext000007"])
	for range sweepRound {
		l.sweepExtensions(time.Now())
	}
	if want := (10*sweepRound - 1) * (500 + 1300); l.size != want {
		t.Errorf("%d bytes are counted, %d kept", l.size, want)
	}
	if len(l.unswept) != 0 {
		t.Errorf("%d were not looked at in a round", len(l.unswept))
	}
	if old.said["two"] != nil || old.places["two"] != nil || len(l.residents) != 0 {
		t.Errorf("what never beat stays: %v, %v, %v", old.said, old.places, l.residents)
	}
}

// TestResidents: whatever comes, moves and goes, a bridge's residents are those that are placed there.
func TestResidents(t *testing.T) {
	l := largeLoop(0)
	for range 10_000 {
		id := fmt.Sprintf("ext%d", rand.N(20))
		instance := fmt.Sprintf("i%d", rand.N(5))
		x := l.exts[id]
		if x == nil {
			x = newExtension(id)
			l.exts[id] = x
		}
		switch rand.N(10) {
		case 0:
			l.drop(x)
		case 1, 2, 3:
			l.displaced(x, instance)
		default:
			l.placed(x, instance, &place{bridge: []string{"", "a", "b", "c"}[rand.N(4)]})
		}
	}
	want := map[string]map[residence]struct{}{}
	for id, x := range l.exts {
		for instance, p := range x.places {
			if p.bridge == "" {
				continue
			}
			if want[p.bridge] == nil {
				want[p.bridge] = map[residence]struct{}{}
			}
			want[p.bridge][residence{id, instance}] = struct{}{}
		}
	}
	if !reflect.DeepEqual(l.residents, want) {
		t.Errorf("got %v\nwant %v", l.residents, want)
	}
	for _, x := range l.exts {
		l.drop(x)
	}
	if len(l.residents) != 0 || len(l.exts) != 0 {
		t.Errorf("what was dropped stays: %v", l.residents)
	}
}
