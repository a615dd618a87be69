package serve

import "sync"

// barriers shares the barriers of the connection among concurrent callers. A barrier is a message to each subscription, of
// which an instance has a dozen: if a thousand instances that stop together had one each, they would wake as many goroutines
// ten million times.
type barriers struct {
	mu       sync.Mutex
	underWay bool
	next     chan struct{} // closed at the end of the barrier after this one; nil if there is no waiter
}

// takenUp returns a channel that is closed when the subscriptions have handled all that the connection has read by now, or
// the connection is closed.
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

// nextBarrier starts a barrier if there are waiters. It is called by the first of them, and then by the last subscription
// that handles the barrier before.
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
