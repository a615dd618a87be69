package serve

import "testing"

// TestCut: a caller that receives a large answer slowly is not waited for after Cut is closed.
func TestCut(t *testing.T) {
	cut := make(chan struct{})
	c := &call{s: &service{ctx: t.Context(), opt: Options{Cut: cut}}}
	c.flow.Store(&flow{acks: make(chan struct{}, 1), left: make(chan struct{})})
	c.flow.Load().acks <- struct{}{}
	if !c.awaitAck() {
		t.Error("an acknowledgement is not enough")
	}
	close(cut)
	if c.awaitAck() {
		t.Error("it is acknowledged by nobody")
	}
}
