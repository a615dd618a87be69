package bridge

import (
	"slices"
	"sync"
	"time"
)

// How many lines of stderr are kept per instance, and how many bytes of them, which is all that logs could show.
const (
	ringLines = 1000
	ringBytes = maxLogs
)

// Line is one line of a child's stderr.
type Line struct {
	At   time.Time `json:"ts"`
	Text string    `json:"line"`
}

// ring keeps the last lines of one slot.
type ring struct {
	mu    sync.Mutex
	lines []Line
	bytes int // of their text
}

func (r *ring) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, Line{time.Now(), text})
	r.bytes += len(text)
	old := 0
	for len(r.lines)-old > ringLines || r.bytes > ringBytes {
		r.bytes -= len(r.lines[old].Text)
		r.lines[old] = Line{} // what lies in front stays until the slice moves
		old++
	}
	r.lines = r.lines[old:]
}

// last returns the last n lines, oldest first; n <= 0: all that are kept.
func (r *ring) last(n int) []Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n <= 0 || n > len(r.lines) {
		n = len(r.lines)
	}
	return slices.Clone(r.lines[len(r.lines)-n:])
}

// bucket lets so many through and then so many a second: what a child says unasked is worth knowing of, not worth
// drowning in. Only one goroutine uses it.
type rateLimit struct {
	size, rate float64
	left       float64
	filled     time.Time
}

// noiseBucket is for lines of noise in our own log, eventBucket for notifications on the mesh: all extensions of a host
// share one connection.
func newNoiseLimit() rateLimit { return rateLimit{size: 20, rate: 2} }
func newEventLimit() rateLimit { return rateLimit{size: 5000, rate: 1000} }

func (b *rateLimit) allow(now time.Time) bool {
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
