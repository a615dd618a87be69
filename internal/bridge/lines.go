package bridge

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits of the output kept per instance. The limit in bytes equals the limit of the response to logs.
const (
	ringLines = 1000
	ringBytes = maxLogs
)

// Line is one line of a child's output.
type Line struct {
	At      time.Time
	Text    string
	Stream  string // stdout, log, or empty for stderr
	Dropped int    // the number of lines that it stands for; 0: it is a line
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

// The limits of an extension's notifications on the mesh, because all extensions of a host share one connection: a second, at
// once, and the bytes above which one counts as several.
const (
	eventRate  = 1000
	eventBurst = 5000
	eventSize  = 16 << 10
)

func newEventLimit() *rate.Limiter { return rate.NewLimiter(eventRate, eventBurst) }
