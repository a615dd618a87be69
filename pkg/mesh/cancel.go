package mesh

import (
	"encoding/json"
	"sync"
	"time"
)

// Cancellations of calls that have not arrived yet are kept for cancelMemory, since a cancel may overtake
// its call on another subject; at most maxEarly of them.
const (
	cancelMemory = 5 * time.Second
	maxEarly     = 4096
	maxCallID    = 128
)

// cancels knows the calls in flight that named themselves, and the cancellations that came too early.
type cancels struct {
	mu    sync.Mutex
	calls map[string]*call
	early map[string]time.Time
}

// watch makes c cancellable by its call id, and cancels it now if that has been asked for already. It is
// called once the call has been started, for cancelling what does not run yet would be lost.
func (s *cancels) watch(c *call) {
	if c.callID == "" || len(c.callID) > maxCallID {
		return
	}
	s.mu.Lock()
	at, cancelled := s.early[c.callID]
	cancelled = cancelled && time.Since(at) < cancelMemory
	if !cancelled && !c.s.calls.hasEnded(c) {
		if s.calls == nil {
			s.calls = map[string]*call{}
		}
		s.calls[c.callID] = c
	}
	s.mu.Unlock()
	if cancelled {
		c.cancel()
	}
}

func (s *cancels) forget(c *call) {
	if c.callID == "" {
		return
	}
	s.mu.Lock()
	if s.calls[c.callID] == c {
		delete(s.calls, c.callID)
	}
	s.mu.Unlock()
}

// receive handles one message of SP.<id>.cancel: {"call_id"}. What is not that is nobody's call.
func (s *cancels) receive(data []byte) {
	var msg struct {
		CallID string `json:"call_id"`
	}
	if len(data) > 1024 || json.Unmarshal(data, &msg) != nil || msg.CallID == "" || len(msg.CallID) > maxCallID {
		return
	}
	s.mu.Lock()
	c := s.calls[msg.CallID]
	if c == nil {
		s.remember(msg.CallID)
	}
	s.mu.Unlock()
	if c != nil {
		c.cancel()
	}
}

// remember keeps an early cancellation; the caller holds mu.
func (s *cancels) remember(id string) {
	now := time.Now()
	if s.early == nil {
		s.early = map[string]time.Time{}
	}
	if len(s.early) >= maxEarly {
		for k, at := range s.early {
			if now.Sub(at) >= cancelMemory {
				delete(s.early, k)
			}
		}
		if len(s.early) >= maxEarly {
			return
		}
	}
	s.early[id] = now
}
