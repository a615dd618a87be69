package serve

import "sync"

// barriers has all who wait at the same time wait for the same barrier of the connection. One is a message to each
// subscription, of which a slot has a dozen: a thousand slots that stop together, each with a barrier of its own, would
// wake as many goroutines ten million times.
type barriers struct {
	mu       sync.Mutex
	underWay bool
	next     chan struct{} // closed at the end of the barrier after this one; nil: nobody waits for it
}

// takenUp returns a channel that is closed when all that the connection has read by now was taken up by its
// subscriptions, or there is no connection any more.
func (n *Publisher) takenUp() <-chan struct{} {
	b := &n.barriers
	b.mu.Lock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	done, first := b.next, !b.underWay
	b.underWay = true
	b.mu.Unlock()
	if first {
		n.nextBarrier()
	}
	return done
}

// nextBarrier begins a barrier for those who wait for one. It is called by the first of them, then by the last
// subscription to see the barrier before.
func (n *Publisher) nextBarrier() {
	b := &n.barriers
	b.mu.Lock()
	done := b.next
	b.next, b.underWay = nil, done != nil
	b.mu.Unlock()
	if done == nil {
		return
	}
	over := func() {
		close(done)
		n.nextBarrier()
	}
	if n.nc.Barrier(over) != nil { // the connection is closed
		over()
	}
}
