package door

import (
	"sync"
	"sync/atomic"
	"time"
)

// The limits of one client, or of all that have authenticated with one token.
const (
	burstOf        = 4 // seconds of the rate that may come at once
	maxUserStreams = 1000
)

// usage is what one client, or all clients with one token, use of the Door.
type usage struct {
	calls   atomic.Int64 // in flight
	streams atomic.Int64

	mu     sync.Mutex
	left   float64 // requests that may be sent now
	filled time.Time
}

// take counts a request at a rate per second, of which burstOf seconds may be used at once. If there are too many, it
// returns when to try again.
func (u *usage) take(rate int, now time.Time) (wait time.Duration, ok bool) {
	if rate <= 0 {
		return 0, true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.left = min(u.left+now.Sub(u.filled).Seconds()*float64(rate), float64(burstOf*rate))
	if u.filled.IsZero() {
		u.left = float64(burstOf * rate)
	}
	u.filled = now
	if u.left < 1 {
		return time.Duration((1 - u.left) / float64(rate) * float64(time.Second)), false
	}
	u.left--
	return 0, true
}

// isIdle reports that a new usage would have the same effect.
func (u *usage) isIdle(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls.Load() == 0 && u.streams.Load() == 0 && now.Sub(u.filled) > burstOf*time.Second
}

// addStream counts a stream of events that can stay open, unless there are too many.
func (u *usage) addStream() (end func(), ok bool) {
	if u.streams.Add(1) > maxUserStreams {
		u.streams.Add(-1)
		return nil, false
	}
	return func() { u.streams.Add(-1) }, true
}

// users are the usages of an HTTP server, by principal.
type users struct {
	mu  sync.Mutex
	all map[string]*usage
}

// of returns the usage of a principal. Their number is limited by the file of tokens.
func (s *users) of(principal string) *usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.all[principal]
	if u == nil {
		u = new(usage)
		if s.all == nil {
			s.all = map[string]*usage{}
		}
		s.all[principal] = u
	}
	return u
}

// sweep forgets those that are not used.
func (s *users) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for principal, u := range s.all {
		if u.isIdle(now) {
			delete(s.all, principal)
		}
	}
}

// streams returns the number of open streams.
func (s *users) streams() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.all {
		n += u.streams.Load()
	}
	return n
}
