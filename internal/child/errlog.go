package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

const (
	maxErrLine = 16 << 10 // of a line that is handed on
	margin     = 4 << 10  // read beyond that, so that Redact sees a secret that straddles the cut
	tailSize   = 4 << 10  // of an ExitError's StderrTail
	tailKeep   = 12 << 10 // of raw text kept for it
	errRate    = 200      // lines a second
	errBurst   = 1000     // lines
	queueLines = 1 << 10  // waiting for a slow Stderr
	queueBytes = 1 << 20
	keepLine   = 1 << 10 // of memory for the next line, while nothing comes
)

// errlog takes a process's stderr: one goroutine reads, whatever happens, and while lines wait for Stderr
// another one hands them on. While the process says nothing there is neither a buffer nor the other one.
type errlog struct {
	out    *outlet
	stderr func(string) // nil: nobody listens
	redact func(string) string
	all    *sync.WaitGroup // Run's
	done   chan struct{}   // closed when all has been read

	// Only read's.
	chunk   *errChunk // what is read into; nil while nothing comes
	line    []byte    // the line so far, at most maxErrLine + margin
	size    int       // its true size
	rate    bucket
	dropped int
	told    time.Time // when dropped was last reported

	mu      sync.Mutex
	queue   []errLine
	waiting int    // bytes in queue
	handing bool   // hand is at work, and will look at queue again
	recent  []byte // raw lines, for the tail
}

type errChunk [8 << 10]byte

var errChunks = sync.Pool{New: func() any { return new(errChunk) }}

// errLine is one line, or the part of it that was kept.
type errLine struct {
	text  string
	size  int  // its true size
	plain bool // our own words
}

func newErrlog(out *outlet, stderr func(string), redact func(string) string, all *sync.WaitGroup) *errlog {
	return &errlog{out: out, stderr: stderr, redact: redact, all: all, done: make(chan struct{}),
		rate: bucket{tokens: errBurst}}
}

// read drains stderr to its end. Nothing in here may wait for anything but the pipe.
func (e *errlog) read() {
	defer e.finish()
	buffer, release := e.buffer, e.release
	buffer() // here and not first in ReadLazy: to make one takes much of what 2 KiB of stack are
	for {
		n, err := e.out.ReadLazy(buffer, release)
		now := time.Now()
		if n > 0 {
			e.take(e.chunk[:n], now)
		}
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

func (e *errlog) buffer() []byte {
	if e.chunk == nil {
		e.chunk = errChunks.Get().(*errChunk)
	}
	return e.chunk[:]
}

func (e *errlog) release() {
	errChunks.Put(e.chunk)
	e.chunk = nil
	if e.size == 0 && cap(e.line) > keepLine {
		e.line = nil
	}
}

// take cuts what was read into lines.
func (e *errlog) take(read []byte, now time.Time) {
	for len(read) > 0 {
		part, after, whole := bytes.Cut(read, []byte{'\n'})
		e.size += len(part)
		e.line = append(e.line, part[:min(len(part), maxErrLine+margin-len(e.line))]...)
		if whole {
			e.endLine(now)
		}
		read = after
	}
}

func (e *errlog) finish() {
	e.out.f.Close()
	if e.chunk != nil {
		e.release()
	}
	close(e.done)
}

// endLine takes the line that is in e.line.
func (e *errlog) endLine(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recent = append(append(e.recent, e.line...), '\n')
	if n := len(e.recent); n > tailKeep {
		// Cut at a line's start: half a secret could not be recognised.
		keep := bytes.LastIndexByte(e.recent[:n-2*tailSize], '\n') + 1
		e.recent = e.recent[:copy(e.recent, e.recent[keep:])]
	}
	if e.stderr != nil && (!e.rate.take(now) || !e.push(errLine{text: string(e.line), size: e.size})) {
		e.dropped++
	}
	e.line, e.size = e.line[:0], 0
}

// push queues a line for hand, unless too much waits already. e.mu is held.
func (e *errlog) push(l errLine) bool {
	if len(e.queue) >= queueLines || e.waiting+len(l.text) > queueBytes {
		return false
	}
	e.enqueue(l)
	return true
}

// enqueue queues a line and sees to it that somebody hands it on. e.mu is held.
func (e *errlog) enqueue(l errLine) {
	e.queue = append(e.queue, l)
	e.waiting += len(l.text)
	if !e.handing {
		e.handing = true
		e.all.Go(e.hand) // ends when the queue is empty; that read is still there makes it safe to add to Run's group
	}
}

// report says how many lines were dropped, at most once a second or when it is the last chance. If it is too
// early it sees to it that read comes back here, even if no more comes.
func (e *errlog) report(now time.Time, last bool) {
	due := e.told.Add(time.Second)
	switch {
	case e.dropped == 0:
		return
	case !last && now.Before(due):
		e.out.wakeAt(due)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told = now
	if !last && len(e.queue) >= queueLines {
		e.out.wakeAt(now.Add(time.Second))
		return
	}
	e.out.wakeAt(time.Time{})
	e.enqueue(errLine{text: fmt.Sprintf("[dropped %d lines of stderr: too many]", e.dropped), plain: true})
	e.dropped = 0
}

// hand hands lines on until there are no more. One is at work at a time, so they stay in order.
func (e *errlog) hand() {
	for {
		e.mu.Lock()
		lines := e.queue
		e.queue, e.waiting = nil, 0
		e.handing = len(lines) > 0
		e.mu.Unlock()
		if len(lines) == 0 {
			return
		}
		for _, l := range lines {
			e.stderr(e.clean(l))
		}
	}
}

// clean makes a line fit to be shown.
func (e *errlog) clean(l errLine) string {
	if l.plain {
		return l.text
	}
	return cleanLine(l.text, l.size, e.redact)
}

// tail returns the last of what was read so far.
func (e *errlog) tail() string {
	e.mu.Lock()
	raw := append([]byte(nil), e.recent...)
	e.mu.Unlock()
	var b bytes.Buffer
	for line := range bytes.Lines(raw) {
		line = bytes.TrimSuffix(line, []byte{'\n'})
		b.WriteString(cleanLine(string(line), len(line), e.redact))
		b.WriteByte('\n')
	}
	return lastBytes(b.String(), tailSize)
}
