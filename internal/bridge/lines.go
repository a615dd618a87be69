package bridge

import (
	"sync"
	"time"
)

// ringLines is how many lines of stderr are kept per instance.
const ringLines = 1000

// Line is one line of a child's stderr.
type Line struct {
	At   time.Time `json:"ts"`
	Text string    `json:"line"`
}

// ring keeps the last lines of one slot.
type ring struct {
	mu    sync.Mutex
	lines []Line
	next  int
}

func (r *ring) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := Line{time.Now(), text}
	if len(r.lines) < ringLines {
		r.lines = append(r.lines, l)
		return
	}
	r.lines[r.next] = l
	r.next = (r.next + 1) % ringLines
}

// last returns the last n lines, oldest first; n <= 0: all that are kept.
func (r *ring) last(n int) []Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append(append([]Line{}, r.lines[r.next:]...), r.lines[:r.next]...)
	if n > 0 && len(all) > n {
		all = all[len(all)-n:]
	}
	return all
}

// bucket lets so many through and then so many a second: what a child says unasked is worth knowing of, not worth
// drowning in. Only one goroutine uses it.
type bucket struct {
	size, rate float64
	left       float64
	filled     time.Time
}

// noiseBucket is for lines of noise in our own log, eventBucket for notifications on the mesh: all extensions of a host
// share one connection.
func noiseBucket() bucket { return bucket{size: 20, rate: 2} }
func eventBucket() bucket { return bucket{size: 5000, rate: 1000} }

func (b *bucket) allow(now time.Time) bool {
	if b.filled.IsZero() {
		b.left = b.size
	} else {
		b.left = min(b.size, b.left+now.Sub(b.filled).Seconds()*b.rate)
	}
	b.filled = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
