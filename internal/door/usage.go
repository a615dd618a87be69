package door

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/extmesh/extmesh/internal/memlimit"
)

// The limits of one client, or of all that have authenticated with one token.
const (
	burstOf        = 4 // seconds of the rate that may come at once
	maxUserStreams = 1000
)

// maxUnread limits the bytes of answers and events that are being written: over it, further requests are refused.
var maxUnread = memoryShare()

// memoryShare is 256 MiB, or an eighth of the process's memory limit if that is less.
func memoryShare() int64 {
	const most = 256 << 20
	if limit := memlimit.Bytes(); limit > 0 {
		return min(most, limit/8)
	}
	return most
}

// usage is what one client, or all clients with one token, use of the Door.
type usage struct {
	calls    atomic.Int64 // in flight
	streams  atomic.Int64
	unread   atomic.Int64  // bytes of answers and events that are being written
	followed int           // resources; guarded by the mutex of updates
	requests *rate.Limiter // nil: no limit
}

// newLimiter returns a limiter of events per second, of which burstOf seconds' worth may come at once.
func newLimiter(perSecond int) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perSecond), burstOf*perSecond)
}

// take counts a request. If there are too many, it returns when to try again.
func (u *usage) take(now time.Time) (wait time.Duration, ok bool) {
	if u.requests == nil {
		return 0, true
	}
	r := u.requests.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait, wait <= 0
}

// addStream counts a stream of events that can stay open, unless there are too many.
func (u *usage) addStream() (end func(), ok bool) {
	if u.streams.Add(1) > maxUserStreams {
		u.streams.Add(-1)
		return nil, false
	}
	return func() { u.streams.Add(-1) }, true
}

// addUnread counts bytes that are being written, until written is called.
func (u *usage) addUnread(bytes int) (written func()) {
	u.unread.Add(int64(bytes))
	return func() { u.unread.Add(-int64(bytes)) }
}

// users are the usages of an HTTP server, by principal.
type users struct {
	rate int // requests per second of each; 0: no limit

	mu  sync.Mutex
	all map[string]*usage
}

// of returns the usage of a principal, which stays the same: sessions keep it. The number of usages is limited by the file
// of tokens.
func (s *users) of(principal string) *usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.all[principal]
	if u == nil {
		u = new(usage)
		if s.rate > 0 {
			u.requests = newLimiter(s.rate)
		}
		if s.all == nil {
			s.all = map[string]*usage{}
		}
		s.all[principal] = u
	}
	return u
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
