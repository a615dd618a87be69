package serve

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// callList is the calls in flight of a service.
type callList struct {
	mu     sync.Mutex
	calls  map[*call]struct{}
	closed bool
	places map[string]int // the calls of each caller whose answer is not on its way
}

// close makes add refuse all further calls.
func (l *callList) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

func (l *callList) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// add adds c, unless the list is closed, or the caller of c has half of most calls in flight already.
func (l *callList) add(c *call, most int) bool {
	c.caller = callerOf(c.reply)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || c.caller != "" && l.places[c.caller] >= (most+1)/2 {
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

// remove removes c and returns the number of calls that are left.
func (l *callList) remove(c *call) (left int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.stream {
		c.s.inst.pub.streams.open.Add(-1)
	}
	delete(l.calls, c)
	return len(l.calls)
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

// callerOf returns the sender of a request, as far as its reply subject shows it: _INBOX.USER of
// _INBOX.USER.CONNECTION.TOKEN, or the connection of any other subject with three parts; "" for fewer parts.
func callerOf(reply string) string {
	parts := strings.Count(reply, ".") + 1
	switch {
	case parts < 3:
		return ""
	case parts > 3 && strings.HasPrefix(reply, nats.InboxPrefix):
		user := strings.IndexByte(reply[len(nats.InboxPrefix):], '.')
		return reply[:len(nats.InboxPrefix)+user]
	}
	return reply[:strings.LastIndexByte(reply, '.')]
}
