package serve

import "testing"

// TestHurry: a service that stops does not wait for a caller that receives a large answer slowly.
func TestHurry(t *testing.T) {
	c := &call{s: &service{ctx: t.Context(), hurry: make(chan struct{})}}
	c.flow.Store(&flow{acks: make(chan struct{}, 1), left: make(chan struct{})})
	c.flow.Load().acks <- struct{}{}
	if !c.awaitAck() {
		t.Error("an acknowledgement is not enough")
	}
	close(c.s.hurry)
	if c.awaitAck() {
		t.Error("it is acknowledged by nobody")
	}
}
