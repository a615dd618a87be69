package child

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/rawio"
)

// run is one process, from its start to the end of its last descendant. Run owns it.
type run struct {
	spec        *Spec
	proc        *os.Process
	pid         int // also of its group; proc has none after its release
	handle      *exitHandle
	descendants *descendants
	began       time.Time

	stdin  *Stdin
	stdout *outputPipe
	stderr *stderrReader

	exited     chan struct{} // closed when the process has ended; it is not reaped yet
	finished   chan struct{} // closed when its ExitError is available
	used       chan struct{} // closed when use has returned
	terminated chan struct{} // closed by Terminate
	once       sync.Once     // for terminated

	termSent time.Time // when SIGTERM was sent first
	killed   time.Time // when SIGKILL was sent first

	all sync.WaitGroup // the goroutines that Run waits for
}

// start makes the pipes and starts the process. It sets the defaults in spec.
func start(ctx context.Context, spec *Spec) (_ *run, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if spec.Grace == 0 {
		spec.Grace = defaultGrace
	}
	if spec.Linger == 0 {
		spec.Linger = defaultLinger
	}
	keepDescriptors()
	marker := newMarker()
	r := &run{spec: spec,
		finished: make(chan struct{}), used: make(chan struct{}), terminated: make(chan struct{}),
	}
	var p pipes
	if err := p.open(); err != nil {
		return nil, fmt.Errorf("starting %q: %w", spec.Command, err)
	}
	defer p.closeChildEnds()
	if err := r.spawn(ctx, marker, p.child[:]); err != nil {
		p.closeOurEnds()
		return nil, err
	}
	spec.Args, spec.Env = nil, nil // not used any more, and possibly long
	r.began = time.Now()
	r.stdin = &Stdin{f: p.ours[0], raw: p.raw[0]}
	r.stdout = newOutputPipe(p.ours[1], p.raw[1], r.finished)
	r.stdout.exited = r.handle.ended
	r.stderr = newStderrReader(newOutputPipe(p.ours[2], p.raw[2], nil), spec.Stderr, spec.Redact, &r.all)
	return r, nil
}

// running counts the children. maxWide is the number of them that get large pipes: if a user's pipes are too large together
// (fs.pipe-user-pages-soft, by default 64 MiB), new ones have only 8 KiB, also those between programs that a child starts.
var running atomic.Int64

const maxWide = 64

// known has the ids of the processes that this program waits for.
var known sync.Map

// pipes are the three pipes of a process.
type pipes struct {
	child, ours [3]*os.File
	raw         [3]*rawio.File // of ours
}

func (p *pipes) open() (err error) {
	defer func() {
		if err != nil {
			p.closeChildEnds()
			p.closeOurEnds()
		}
	}()
	for i := range p.child {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		if i < 2 && running.Load() <= maxWide { // not stderr
			widen(w)
		}
		if i == 0 {
			p.child[i], p.ours[i] = r, w
		} else {
			p.child[i], p.ours[i] = w, r
		}
		if p.raw[i], err = rawio.New(p.ours[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *pipes) closeChildEnds() { closeAll(p.child[:]) }
func (p *pipes) closeOurEnds()   { closeAll(p.ours[:]) }

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// terminate implements Terminate.
func (r *run) terminate() {
	r.once.Do(func() { close(r.terminated) })
}

// watchExit makes exited, which is closed when the process ends, immediately if it has ended.
func (r *run) watchExit() {
	r.exited = make(chan struct{})
	if r.handle.ended() {
		close(r.exited)
		return
	}
	go func() { // ends with the process, or when finish closes the handle of an unkillable one
		r.handle.wait()
		close(r.exited)
	}()
}

// stop ends the process: it closes stdin, sends SIGTERM, then SIGKILL. It returns when the process has ended, or has
// proved unkillable.
func (r *run) stop() {
	select {
	case <-r.terminated:
	default:
		began := time.Now()
		if r.spec.BeforeStop != nil {
			done := make(chan struct{})
			r.all.Go(func() { // ends by its write deadline, or with the pipe
				defer close(done)
				r.stdin.beforeStop(r.spec.BeforeStop)
			})
			r.endsWithin(beforeStopWait, done)
		}
		r.stdin.Close()
		if r.endsWithin(r.spec.Grace-time.Since(began), r.terminated) {
			return
		}
	}
	r.termSent = time.Now()
	r.descendants.terminate()
	if r.endsWithin(termWait, nil) {
		return
	}
	r.killed = time.Now()
	r.descendants.kill()
	r.endsWithin(killWait, nil)
}

func (r *run) hasEnded() bool {
	select {
	case <-r.exited:
		return true
	default:
		return false
	}
}

// endsWithin waits for the process to end, for at most d and until enough is closed. It reports whether the process has
// ended.
func (r *run) endsWithin(d time.Duration, enough <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-r.exited:
		return true
	case <-t.C:
	case <-enough:
	}
	return false
}

// finish sends SIGTERM to the group of an ended process, ends the pipes, and reaps the process. The order matters: until
// the process is reaped its id is not used again, so the signal cannot reach an unrelated group.
func (r *run) finish(stopped bool) *ExitError {
	exit := &ExitError{ExitCode: -1, Uptime: time.Since(r.began), Stopped: stopped}
	ended := r.hasEnded()
	if ended {
		if r.termSent.IsZero() {
			r.termSent = time.Now()
		}
		r.descendants.terminateGroup()
	}
	r.stdin.Close()
	r.stdout.end()
	r.stderr.out.end()
	if !ended {
		exit.Cause = fmt.Errorf("process %d is still running after SIGKILL", r.pid)
		r.proc.Release()
	} else if state, err := r.handle.reap(); err != nil {
		exit.Cause = fmt.Errorf("its exit status could not be read: %w", err)
	} else {
		exit.ExitCode, exit.Signal = status(state)
		exit.CPU = state.UserTime() + state.SystemTime()
	}
	r.handle.close() // ends the goroutine of watchExit, if it is still running
	exit.StderrTail = r.awaitOutput(exit)
	return exit
}

// awaitOutput waits for the last output of the process, sets the reason of exit from it, and returns the end of stderr.
func (r *run) awaitOutput(exit *ExitError) (tail string) {
	late := time.NewTimer(tailWait)
	defer late.Stop()
	waited := []<-chan struct{}{r.stderr.done}
	if r.spec.Output != nil && !exit.ended() {
		waited = append(waited, r.stdout.drained)
	}
	for _, done := range waited {
		select {
		case <-done:
		case <-late.C: // a descendant keeps stderr open and floods it, or nothing reads stdout
			late.Reset(0)
		}
	}
	lines := r.stderr.lastLines()
	var stdout []string
	if r.spec.Output != nil {
		for _, line := range r.spec.Output() {
			stdout = append(stdout, cleanLine(line, len(line), r.spec.Redact))
		}
	}
	exit.setReason(lines, stdout)
	return lastBytes(strings.Join(append(lines, ""), "\n"), tailSize)
}

// endDescendants ends the descendants of the process, until no more are found: with SIGTERM, and with SIGKILL a second
// after the run's first SIGTERM, so that they do not make a stop take longer.
func (r *run) endDescendants() error {
	defer r.descendants.close()
	defer r.stderr.out.cutOff()
	defer r.stdout.cutOff()
	for pause := time.Millisecond; !r.descendants.gone(); pause = min(2*pause, 20*time.Millisecond) {
		switch {
		case time.Since(r.termSent) < termWait:
			r.descendants.terminate()
		case r.killed.IsZero():
			r.killed = time.Now() // after termWait, or later if this machine stood still
			r.descendants.kill()
		case time.Since(r.killed) < killWait:
			r.descendants.kill()
		default:
			return fmt.Errorf("process group %d is still running after SIGKILL; it may run as another user", r.pid)
		}
		time.Sleep(pause)
	}
	return nil
}

// close closes stdin and stdout, after use has returned.
func (r *run) close() {
	r.stdin.Close()
	r.stdout.f.Close()
	// stderr is closed by its reader, which may still have lines to read.
}
