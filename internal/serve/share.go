package serve

// shares counts the calls in flight of each caller. It counts only while more than half of the calls that a service allows
// are in flight: below that no caller can have more than its share, which is half.
type shares struct {
	of  map[string]int // nil: not counting
	run uint64         // of counting; marks the calls that are counted in it
}

// admit adds c to the list, unless its caller has half of most calls in flight already; n is the number of calls
// in flight with c.
func (l *callList) admit(c *call, n, most int64) (ok bool) {
	half := (most + 1) / 2
	if ok = n <= half && !l.counting.Load() || l.share(c, n, half); ok {
		l.add(c)
	}
	return ok
}

// share counts c, unless its caller has half already.
func (l *callList) share(c *call, n, half int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case n > half && l.shares.of == nil:
		l.startCounting()
	case n <= half/2 && l.shares.of != nil:
		l.shares.of = nil
		l.counting.Store(false)
	}
	if c.caller = callerOf(c.reply); l.shares.of == nil || c.caller == "" {
		return true
	}
	if int64(l.shares.of[c.caller]) >= half {
		return false
	}
	l.count(c)
	return true
}

// startCounting counts the calls that are in the list; the caller holds mu. Calls that are being answered have given
// their place back, or are about to.
func (l *callList) startCounting() {
	l.shares.of = map[string]int{}
	l.shares.run++
	l.counting.Store(true)
	for c := range l.calls {
		if c.caller = callerOf(c.reply); c.caller != "" && !c.claimed.Load() {
			l.count(c)
		}
	}
}

func (l *callList) count(c *call) {
	l.shares.of[c.caller]++
	c.counted = l.shares.run
}

// uncount takes c, which gives its place back, out of its caller's share.
func (l *callList) uncount(c *call) {
	if !l.counting.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shares.of == nil || c.counted != l.shares.run {
		return
	}
	c.counted = 0
	if l.shares.of[c.caller]--; l.shares.of[c.caller] == 0 {
		delete(l.shares.of, c.caller)
	}
}
