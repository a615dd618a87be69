package bridge

import (
	"slices"
	"sync"
)

// siblings are the ready lives of one unit's replicas. A call that finds its own replica dead, or held off by its
// breaker, is handed to another one: it takes the mesh a few milliseconds to learn of a death, and callers would
// be sent there until then.
type siblings struct {
	mu    sync.Mutex
	ready []*forwarder
}

func (s *siblings) join(f *forwarder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, f)
}

func (s *siblings) leave(f *forwarder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = slices.DeleteFunc(s.ready, func(g *forwarder) bool { return g == f })
}

// other is a ready life that is not f, nil if there is none.
func (s *siblings) other(f *forwarder) *forwarder {
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
func (h *hop) move() bool {
	if h.moved || h.f.siblings == nil {
		return false
	}
	to := h.f.siblings.other(h.f)
	if to == nil {
		return false
	}
	h2 := to.newHop(h.outer)
	h2.moved = true
	h2.Method, h2.Params = h.Method, h.params
	h2.run()
	return true
}
