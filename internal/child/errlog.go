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
	tailKeep   = 32 << 10 // of raw text kept for it
	errRate    = 200      // lines a second
	errBurst   = 1000     // lines
	queueLines = 1 << 10  // waiting for a slow Stderr
	queueBytes = 1 << 20
)

// errlog takes a process's stderr: one goroutine reads, whatever happens, another one hands lines on.
type errlog struct {
	out    *outlet
	stderr func(string) // nil: nobody listens
	redact func(string) string
	done   chan struct{} // closed when all has been read

	// Only read's.
	line    []byte // the line so far, at most maxErrLine + margin
	size    int    // its true size
	rate    bucket
	dropped int
	told    time.Time // when dropped was last reported

	mu      sync.Mutex
	more    sync.Cond
	queue   []errLine
	waiting int    // bytes in queue
	over    bool   // no more will come
	recent  []byte // raw lines, for the tail
}

// errLine is one line, or the part of it that was kept.
type errLine struct {
	text  string
	size  int  // its true size
	plain bool // our own words
}

func newErrlog(out *outlet, stderr func(string), redact func(string) string) *errlog {
	e := &errlog{out: out, stderr: stderr, redact: redact, done: make(chan struct{}),
		rate: bucket{tokens: errBurst}}
	e.more.L = &e.mu
	return e
}

// read drains stderr to its end. Nothing in here may wait for anything but the pipe.
func (e *errlog) read() {
	defer e.finish()
	chunk := make([]byte, 8<<10)
	for {
		n, err := e.out.Read(chunk)
		now := time.Now()
		for rest := chunk[:n]; len(rest) > 0; {
			part, after, whole := bytes.Cut(rest, []byte{'\n'})
			e.size += len(part)
			e.line = append(e.line, part[:min(len(part), maxErrLine+margin-len(e.line))]...)
			if whole {
				e.endLine(now)
			}
			rest = after
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

func (e *errlog) finish() {
	e.out.f.Close()
	close(e.done)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	e.more.Signal()
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
	e.queue = append(e.queue, l)
	e.waiting += len(l.text)
	e.more.Signal()
	return true
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
	e.queue = append(e.queue, errLine{text: fmt.Sprintf("[dropped %d lines of stderr: too many]", e.dropped), plain: true})
	e.more.Signal()
	e.dropped = 0
}

// hand hands lines on until there are no more.
func (e *errlog) hand() {
	for {
		e.mu.Lock()
		for len(e.queue) == 0 && !e.over {
			e.more.Wait()
		}
		lines := e.queue
		e.queue, e.waiting = nil, 0
		over := e.over && len(lines) == 0
		e.mu.Unlock()
		if over {
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
