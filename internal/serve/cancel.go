package serve

import (
	"encoding/json"
	"sync"
	"time"
)

// Cancellations of calls that have not arrived yet are kept for cancelMemory, because a cancellation can overtake its call
// on another subject; at most maxEarly of them in that time.
const (
	cancelMemory = 5 * time.Second
	maxEarly     = 4096
	maxCallID    = 128
)

// cancels has the calls in flight that have a call id, and the cancellations that arrived before their calls. These are kept
// in two generations, so that a flood of them costs only memory, within a limit.
type cancels struct {
	mu     sync.Mutex
	calls  map[string]*call
	early  map[string]time.Time // since turned
	older  map[string]time.Time // the generation before
	turned time.Time
}

// watch makes c cancellable by its call id, and cancels it if its cancellation has arrived already. It is called after the
// call was started, because a cancellation before that would be lost; by then the call may have been answered and removed.
func (s *cancels) watch(c *call) {
	s.mu.Lock()
	if c.callID == "" || len(c.callID) > maxCallID {
		s.mu.Unlock()
		return
	}
	cancelled := s.cameEarly(c.callID, time.Now())
	if !cancelled {
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

// forget is called when a call has its answer. It clears the call id, so that a later watch does not keep the call.
func (s *cancels) forget(c *call) {
	if c.callID == "" {
		return
	}
	s.mu.Lock()
	if s.calls[c.callID] == c {
		delete(s.calls, c.callID)
	}
	c.callID = ""
	s.mu.Unlock()
}

// receive handles one message of SP.<id>.cancel: {"call_id"}. Any other message is ignored.
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
		s.remember(msg.CallID, time.Now())
	}
	s.mu.Unlock()
	if c != nil {
		c.cancel()
	}
}

// remember keeps an early cancellation; the caller holds mu.
func (s *cancels) remember(id string, now time.Time) {
	if now.Sub(s.turned) >= cancelMemory {
		s.older, s.early, s.turned = s.early, map[string]time.Time{}, now
	}
	if len(s.early) < maxEarly {
		s.early[id] = now
	}
}

// cameEarly reports whether id was cancelled a moment ago; the caller holds mu.
func (s *cancels) cameEarly(id string, now time.Time) bool {
	at, ok := s.early[id]
	if !ok {
		at, ok = s.older[id]
	}
	return ok && now.Sub(at) < cancelMemory
}
