package serve

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func TestTally(t *testing.T) {
	var y counters
	if n := testing.AllocsPerRun(100, func() { y.took.Add(time.Second); y.refused(rpc.CodeCancelled) }); n > 0 {
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
	s.counters.took.Add(time.Second)
	c := s.Counts()
	if c.Restarts != 3 || c.ByKind["overloaded"] != 2 || c.ByKind[calls.Own] != 1 || c.ByKind["timeout"] != 0 || len(c.ByKind) != len(countedCodes)+2 || c.Took.Sum != time.Second {
		t.Errorf("%+v", c)
	}
	for kind := range c.ByKind {
		if kind == "" {
			t.Error("a kind has no name")
		}
	}
}
