package bridge

import (
	"slices"
	"sync"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// replicaSet contains the forwarders of one workload's ready replicas. If a replica's process has exited or its
// breaker is open, its calls are moved to another one, because it takes a few milliseconds until callers stop choosing this one.
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

// other returns the forwarder of a ready replica that is not f and whose breaker is closed, or nil.
func (s *replicaSet) other(f *forwarder) *forwarder {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.ready {
		if state, _ := g.breaker.State(); g != f && state == heartbeat.BreakerClosed {
			return g
		}
	}
	return nil
}

// moveToReplica moves h, which has certainly not run, to another replica, at most once. It returns false if no other
// one is ready. A subscription stays, because this instance renews it, and so does a ping, which is meant for this instance.
func (h *forwardedCall) moveToReplica() bool {
	if h.moved || h.f.replicas == nil || h.Method == mcp.MethodSubscribe || h.Method == "ping" {
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
