package serve

import (
	"maps"
	"slices"
	"sync"
)

// callList is the calls in flight of a service.
type callList struct {
	mu     sync.Mutex
	calls  map[*call]struct{}
	closed bool
	places map[string]int // the calls of each caller whose answer is not on its way
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

// add adds c, unless its caller has half of most calls in flight already.
func (l *callList) add(c *call, most int) bool {
	c.caller = callerOf(c.reply)
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.caller != "" && l.places[c.caller] >= (most+1)/2 {
		return false
	}
	if l.calls == nil {
		l.calls, l.places = map[*call]struct{}{}, map[string]int{}
	}
	l.calls[c] = struct{}{}
	l.places[c.caller]++
	if c.stream {
		c.s.inst.pub.streams.open.Add(1)
	}
	return true
}

// leave gives the place of c back, once, before its answer is sent.
func (l *callList) leave(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.places[c.caller]--; l.places[c.caller] == 0 {
		delete(l.places, c.caller)
	}
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
