package bridge

import (
	"slices"
	"sync"
	"time"
)

// Limits of the output kept per instance. The limit in bytes equals the limit of the response to logs.
const (
	ringLines = 1000
	ringBytes = maxLogs
)

// Line is one line of a child's output.
type Line struct {
	At     time.Time
	Text   string
	Stream string // stdout, or empty for stderr
}

// ring keeps the last lines of one instance.
type ring struct {
	mu    sync.Mutex
	lines []Line
	bytes int // of their text
}

func (r *ring) add(l Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, l)
	r.bytes += len(l.Text)
	old := 0
	for len(r.lines)-old > ringLines || r.bytes > ringBytes {
		r.bytes -= len(r.lines[old].Text)
		r.lines[old] = Line{} // the array keeps its beginning until append moves the slice
		old++
	}
	r.lines = r.lines[old:]
}

// last returns the last n lines, oldest first; n <= 0: all of them.
func (r *ring) last(n int) []Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n <= 0 || n > len(r.lines) {
		n = len(r.lines)
	}
	return slices.Clone(r.lines[len(r.lines)-n:])
}

// rateLimit is a token bucket that limits how much of a child's unsolicited output is logged or published. It is not safe
// for concurrent use.
type rateLimit struct {
	size, rate float64
	left       float64
	filled     time.Time
}

// newNoiseLimit is for lines of noise in the bridge's log, newEventLimit for notifications on the mesh, because all
// extensions of a host share one connection.
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
