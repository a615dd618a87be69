package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	maxErrLine = 16 << 10 // of a line that is passed to Stderr
	margin     = 4 << 10  // read in addition, so that Redact sees the whole of a secret at the cut
	tailSize   = 4 << 10  // of an ExitError's StderrTail
	tailKeep   = 12 << 10 // of raw text kept for it
	errRate    = 200      // lines a second
	errBurst   = 1000     // lines
	queueLines = 1 << 10  // waiting for a slow Stderr
	queueBytes = 1 << 20
	keepLine   = 1 << 10 // of memory for the next line
	chunkSize  = 4 << 10 // of a read
)

// stderrReader reads a process's stderr on one goroutine, which never blocks on anything else. While lines wait for Stderr, a
// second goroutine delivers them.
type stderrReader struct {
	out    *outputPipe
	stderr func(string) // Spec.Stderr, or nil
	redact func(string) string
	all    *sync.WaitGroup // Run's
	done   chan struct{}   // closed when everything has been read

	// Used by read only.
	line     []byte // the current line, at most maxErrLine + margin
	size     int    // its full size
	rate     *rate.Limiter
	dropped  int
	reported time.Time // when dropped was last reported

	mu         sync.Mutex
	queue      []errLine
	waiting    int    // bytes in queue
	delivering bool   // deliver is running, and will check queue again
	recent     []byte // raw lines, for the tail
}

// errLine is a line, or the part of it that was kept.
type errLine struct {
	text  string
	size  int  // its full size
	plain bool // made by report, not by the process
}

func newStderrReader(out *outputPipe, stderr func(string), redact func(string) string, all *sync.WaitGroup) *stderrReader {
	return &stderrReader{out: out, stderr: stderr, redact: redact, all: all, done: make(chan struct{}),
		rate: rate.NewLimiter(errRate, errBurst)}
}

// read reads stderr to its end. It must not block on anything but the pipe.
func (e *stderrReader) read() {
	defer e.finish()
	chunk := make([]byte, chunkSize)
	for {
		n, err := e.out.Read(chunk)
		now := time.Now()
		e.split(chunk[:n], now)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			if e.size > 0 {
				e.endLine(now)
			}
			e.report(now, true)
			return
		}
		e.report(now, false)
	}
}

// split splits what was read into lines.
func (e *stderrReader) split(read []byte, now time.Time) {
	for len(read) > 0 {
		part, after, whole := bytes.Cut(read, []byte{'\n'})
		e.size += len(part)
		e.line = append(e.line, part[:min(len(part), maxErrLine+margin-len(e.line))]...)
		if whole {
			e.endLine(now)
		}
		read = after
	}
	if e.size == 0 && cap(e.line) > keepLine {
		e.line = nil
	}
}

func (e *stderrReader) finish() {
	e.out.f.Close()
	close(e.done)
}

// endLine handles the complete line in e.line.
func (e *stderrReader) endLine(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recent = append(append(e.recent, e.line...), '\n')
	if n := len(e.recent); n > tailKeep {
		// Cut at the start of a line: a part of a secret would not be recognised.
		keep := bytes.LastIndexByte(e.recent[:n-2*tailSize], '\n') + 1
		e.recent = e.recent[:copy(e.recent, e.recent[keep:])]
	}
	if e.stderr != nil && (!e.rate.AllowN(now, 1) || !e.push(errLine{text: string(e.line), size: e.size})) {
		e.dropped++
	}
	e.line, e.size = e.line[:0], 0
}

// push queues a line for deliver. It returns false if the queue is full. e.mu is held.
func (e *stderrReader) push(l errLine) bool {
	if len(e.queue) >= queueLines || e.waiting+len(l.text) > queueBytes {
		return false
	}
	e.enqueue(l)
	return true
}

// enqueue queues a line and starts deliver, unless it is running. e.mu is held.
func (e *stderrReader) enqueue(l errLine) {
	e.queue = append(e.queue, l)
	e.waiting += len(l.text)
	if !e.delivering {
		e.delivering = true
		e.all.Go(e.deliver) // ends when the queue is empty; adding to Run's WaitGroup is safe while read is in it
	}
}

// report reports how many lines were dropped, at most once a second, and at the end. If it is too early, it makes read
// call it again in time, even if there is no more output.
func (e *stderrReader) report(now time.Time, last bool) {
	due := e.reported.Add(time.Second)
	switch {
	case e.dropped == 0:
		return
	case !last && now.Before(due):
		e.out.wakeAt(due)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reported = now
	if !last && len(e.queue) >= queueLines {
		e.out.wakeAt(now.Add(time.Second))
		return
	}
	e.out.wakeAt(time.Time{})
	e.enqueue(errLine{text: fmt.Sprintf("[dropped %d lines of stderr: too many]", e.dropped), plain: true})
	e.dropped = 0
}

// deliver passes lines to Stderr until the queue is empty. Only one deliver runs at a time, so lines stay in order.
func (e *stderrReader) deliver() {
	for {
		e.mu.Lock()
		lines := e.queue
		e.queue, e.waiting = nil, 0
		e.delivering = len(lines) > 0
		e.mu.Unlock()
		if len(lines) == 0 {
			return
		}
		for _, l := range lines {
			e.stderr(e.clean(l))
		}
	}
}

// clean prepares a line for Stderr.
func (e *stderrReader) clean(l errLine) string {
	if l.plain {
		return l.text
	}
	return cleanLine(l.text, l.size, e.redact)
}

// lastLines returns the last lines that were read so far.
func (e *stderrReader) lastLines() (lines []string) {
	e.mu.Lock()
	raw := append([]byte(nil), e.recent...)
	e.mu.Unlock()
	for line := range bytes.Lines(raw) {
		line = bytes.TrimSuffix(line, []byte{'\n'})
		lines = append(lines, cleanLine(string(line), len(line), e.redact))
	}
	return lines
}
