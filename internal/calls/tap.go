package calls

import (
	"slices"
	"sync/atomic"
)

// The limits of taps.
const (
	maxTaps   = 4
	tapBuffer = 256 // records that wait for their reader
)

// Tap receives the calls that a query selects while they end.
type Tap struct {
	Records chan Record
	Dropped atomic.Uint64 // that were not read in time

	query Query
}

// Tap adds a tap to the log until stop is called. ok is false if there are too many.
func (l *Log) Tap(q Query) (t *Tap, stop func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var now []*Tap
	if taps := l.taps.Load(); taps != nil {
		now = *taps
	}
	if len(now) >= maxTaps {
		return nil, nil, false
	}
	t = &Tap{Records: make(chan Record, tapBuffer), query: q}
	next := append(slices.Clone(now), t)
	l.taps.Store(&next)
	return t, func() { l.untap(t) }, true
}

func (l *Log) untap(t *Tap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if next := slices.DeleteFunc(slices.Clone(*l.taps.Load()), func(o *Tap) bool { return o == t }); len(next) > 0 {
		l.taps.Store(&next)
	} else {
		l.taps.Store(nil)
	}
}

// offer passes a call to the taps that want it, and never waits.
func (e *Extension) offer(taps []*Tap, c *End) {
	r := c.record(e.id)
	for _, t := range taps {
		if !t.query.matches(&r) {
			continue
		}
		select {
		case t.Records <- r:
		default:
			t.Dropped.Add(1)
		}
	}
}
