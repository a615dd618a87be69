package serve

import (
	"sync"
	"sync/atomic"
)

// callList is the calls in flight of a service.
type callList struct {
	mu     sync.Mutex
	head   *call
	n      int
	closed bool

	shares   shares      // guarded by mu
	counting atomic.Bool // whether shares counts
}

// enter adds one to the handlers WaitGroup, unless the list is closed: then Wait may have returned already.
func (l *callList) enter(handlers *sync.WaitGroup) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		handlers.Add(1)
	}
	return !l.closed
}

// enterHandler is enter for the handler of c; leaveHandler reverses it, once.
func (l *callList) enterHandler(handlers *sync.WaitGroup, c *call) bool {
	entered := l.enter(handlers)
	l.mu.Lock()
	defer l.mu.Unlock()
	c.handled = entered
	return entered
}

func (l *callList) leaveHandler(handlers *sync.WaitGroup, c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.handled {
		c.handled = false
		handlers.Done()
	}
}

func (l *callList) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// add adds c.
func (l *callList) add(c *call) {
	if c.stream {
		c.s.inst.pub.streams.open.Add(1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	if c.next = l.head; c.next != nil {
		c.next.prev = c
	}
	l.head = c
}

// remove removes c and returns the number of calls that are left; ended is false if c had ended before.
func (l *callList) remove(c *call) (ended bool, left int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.ended {
		return false, l.n
	}
	c.ended = true
	if c.stream {
		c.s.inst.pub.streams.open.Add(-1)
	}
	l.n--
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.head = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	return true, l.n
}

func (l *callList) hasEnded(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.ended
}

func (l *callList) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// each calls f for the calls in flight, outside the lock.
func (l *callList) each(f func(*call)) {
	l.mu.Lock()
	var all []*call
	for c := l.head; c != nil; c = c.next {
		all = append(all, c)
	}
	l.mu.Unlock()
	for _, c := range all {
		f(c)
	}
}
