package serve

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func TestTally(t *testing.T) {
	var y counters
	for _, d := range []time.Duration{0, TookBounds[0], TookBounds[0] + 1, time.Second, time.Hour, -1} {
		y.end(d)
	}
	want := [len(TookBounds) + 1]uint64{0: 3, 1: 1, 10: 1, len(TookBounds): 1}
	for i := range y.took {
		if n := y.took[i].Load(); n != want[i] {
			t.Errorf("bucket %d has %d, want %d", i, n, want[i])
		}
	}
	if n := testing.AllocsPerRun(100, func() { y.end(time.Second); y.refused(rpc.CodeCancelled) }); n > 0 {
		t.Errorf("counting a call allocates %v times", n)
	}
}

func TestCounts(t *testing.T) {
	s := NewPublisher(nil, PublisherOptions{}).Join(wire.Announce{ID: "x", Version: "1.0.0"})
	for range 4 {
		s.Apply(instance.Event{Kind: instance.Begin})
	}
	s.counters.refused(rpc.CodeOverloaded)
	s.counters.refused(rpc.CodeOverloaded)
	s.counters.refused(12345)
	s.counters.end(time.Second)
	c := s.Counts()
	if c.Restarts != 3 || c.ByKind["overloaded"] != 2 || c.ByKind[KindOwn] != 1 || c.ByKind["timeout"] != 0 || len(c.ByKind) != len(countedCodes)+1 || c.TookSum != time.Second {
		t.Errorf("%+v", c)
	}
	for kind := range c.ByKind {
		if kind == "" {
			t.Error("a kind has no name")
		}
	}
}
