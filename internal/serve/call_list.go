package serve

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// callList is the calls in flight of a service.
type callList struct {
	mu     sync.Mutex
	calls  map[*call]struct{}
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
	if l.calls == nil {
		l.calls = map[*call]struct{}{}
	}
	l.calls[c] = struct{}{}
}

// remove removes c and returns the number of calls that are left; ended is false if c had ended before.
func (l *callList) remove(c *call) (ended bool, left int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.ended {
		return false, len(l.calls)
	}
	c.ended = true
	if c.stream {
		c.s.inst.pub.streams.open.Add(-1)
	}
	delete(l.calls, c)
	return true, len(l.calls)
}

func (l *callList) hasEnded(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.ended
}

func (l *callList) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.calls)
}

// each calls f for the calls in flight, outside the lock.
func (l *callList) each(f func(*call)) {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.calls))
	l.mu.Unlock()
	for _, c := range all {
		f(c)
	}
}
