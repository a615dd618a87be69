package bridge

import (
	"slices"
	"sync"
)

// siblings are the ready lives of one unit's replicas. A call that finds its own replica dead, or held off by its
// breaker, is handed to another one: it takes the mesh a few milliseconds to learn of a death, and callers would
// be sent there until then.
type replicaSet struct {
	mu    sync.Mutex
	ready []*forwarder
}

func (s *replicaSet) add(f *forwarder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, f)
}

func (s *replicaSet) remove(f *forwarder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = slices.DeleteFunc(s.ready, func(g *forwarder) bool { return g == f })
}

// other is a ready life that is not f, nil if there is none.
func (s *replicaSet) other(f *forwarder) *forwarder {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.ready {
		if g != f {
			return g
		}
	}
	return nil
}

// move hands h, which has surely not run, to a sibling, once. It reports whether there was one.
func (h *forwardedCall) moveToReplica() bool {
	if h.moved || h.f.replicas == nil {
		return false
	}
	to := h.f.replicas.other(h.f)
	if to == nil {
		return false
	}
	h2 := to.newCall(h.outer)
	h2.moved = true
	h2.Method, h2.Params = h.Method, h.params
	h2.run()
	return true
}
