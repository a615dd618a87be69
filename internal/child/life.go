package child

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// life is one process from its start to the end of its last descendant. Run owns it.
type life struct {
	spec   *Spec
	proc   *os.Process
	handle *exitHandle
	family *family
	began  time.Time

	stdin  *Stdin
	stdout *outlet
	errlog *errlog

	exited chan struct{} // closed when the process has ended; it is not reaped yet
	buried chan struct{} // closed when its ExitError is known
	used   chan struct{} // closed when use has returned
	hurry  chan struct{} // closed by Terminate
	once   sync.Once     // for hurry

	told time.Time // when SIGTERM was sent first

	all sync.WaitGroup // the goroutines that Run waits for
}

// start makes the pipes and the process. It fills in spec's defaults.
func start(ctx context.Context, spec *Spec) (_ *life, err error) {
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
	mark := newMark()
	l := &life{spec: spec,
		buried: make(chan struct{}), used: make(chan struct{}), hurry: make(chan struct{}),
	}
	var p pipes
	if err := p.open(); err != nil {
		return nil, fmt.Errorf("starting %q: %w", spec.Command, err)
	}
	defer p.closeChildEnds()
	if err := l.spawn(ctx, mark, p.child[:]); err != nil {
		p.closeOurEnds()
		return nil, err
	}
	spec.Args, spec.Env = nil, nil // they may be long, and nobody needs them any more
	l.began = time.Now()
	l.stdin = newStdin(p.ours[0])
	l.stdout = newOutlet(p.ours[1], l.buried)
	l.errlog = newErrlog(newOutlet(p.ours[2], nil), spec.Stderr, spec.Redact, &l.all)
	return l, nil
}

// pipes are the three pipes of a process.
type pipes struct {
	child, ours [3]*os.File
}

func (p *pipes) open() (err error) {
	for i := range p.child {
		r, w, err := os.Pipe()
		if err != nil {
			p.closeChildEnds()
			p.closeOurEnds()
			return err
		}
		if i < 2 { // not stderr
			widen(w)
		}
		if i == 0 {
			p.child[i], p.ours[i] = r, w
		} else {
			p.child[i], p.ours[i] = w, r
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

// leave is for use, when it has returned.
func (l *life) leave() {
	close(l.used)
	l.handle.wake()
}

// hurryUp is Terminate.
func (l *life) hurryUp() {
	l.once.Do(func() { close(l.hurry) })
	l.handle.wake()
}

// watchExit makes l.exited and has it closed at the process's end, at once if it has ended.
func (l *life) watchExit() {
	l.exited = make(chan struct{})
	if l.handle.ended() {
		close(l.exited)
		return
	}
	go func() { // ends with the process, which bury waits for unless it proves unkillable
		l.handle.wait()
		close(l.exited)
	}()
}

// stop tells the process to end and, step by step, makes it. It returns when the process has ended, or has
// proved unkillable.
func (l *life) stop() {
	select {
	case <-l.hurry:
	default:
		began := time.Now()
		if l.spec.Farewell != nil {
			said := make(chan struct{})
			l.all.Go(func() { // ends by its write deadline, or with the pipe
				defer close(said)
				l.stdin.farewell(l.spec.Farewell)
			})
			l.over(farewellWait, said)
		}
		l.stdin.Close()
		if l.over(l.spec.Grace-time.Since(began), l.hurry) {
			return
		}
	}
	l.told = time.Now()
	l.family.terminate()
	if l.over(termWait, nil) {
		return
	}
	l.family.kill()
	l.over(killWait, nil)
}

func (l *life) hasEnded() bool {
	select {
	case <-l.exited:
		return true
	default:
		return false
	}
}

// over waits for the process's end, for d at most and no longer than until enough. It reports whether the
// process has ended.
func (l *life) over(d time.Duration, enough <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-l.exited:
		return true
	case <-t.C:
	case <-enough:
	}
	return false
}

// bury tells the group, brings the pipes to their ends and reaps the process. The order matters: until it is
// reaped its number is nobody else's, so the signal to its group cannot meet a stranger.
func (l *life) bury(stopped bool) *ExitError {
	exit := &ExitError{ExitCode: -1, Uptime: time.Since(l.began), Stopped: stopped}
	ended := l.hasEnded()
	if ended {
		if l.told.IsZero() {
			l.told = time.Now()
		}
		l.family.terminateGroup()
	}
	l.stdin.Close()
	l.stdout.end()
	l.errlog.out.end()
	if !ended {
		exit.Cause = fmt.Errorf("process %d outlives SIGKILL", l.proc.Pid)
		l.proc.Release()
	} else if state, err := l.handle.reap(); err != nil {
		exit.Cause = fmt.Errorf("its status is lost: %w", err)
	} else {
		exit.ExitCode, exit.Signal = status(state)
	}
	l.handle.close() // what watchExit started lets go, if it is still there
	t := time.NewTimer(tailWait)
	defer t.Stop()
	select {
	case <-l.errlog.done:
	case <-t.C: // somebody else holds stderr and floods it
	}
	exit.StderrTail = l.errlog.tail()
	return exit
}

// sweep ends what the process left behind, until a look around finds nothing more: SIGTERM, and SIGKILL a
// second after the first SIGTERM of all, so that a stop takes no longer for it.
func (l *life) sweep() error {
	defer l.family.close()
	defer l.errlog.out.cutOff()
	defer l.stdout.cutOff()
	for pause := time.Millisecond; !l.family.gone(); pause = min(2*pause, 20*time.Millisecond) {
		switch d := time.Since(l.told); {
		case d < termWait:
			l.family.terminate()
		case d < termWait+killWait:
			l.family.kill()
		default:
			return fmt.Errorf("process group %d outlives SIGKILL; it may run as another user", l.proc.Pid)
		}
		time.Sleep(pause)
	}
	return nil
}

// close gives the descriptors back, once use has returned.
func (l *life) close() {
	l.stdin.Close()
	l.stdout.f.Close()
	// stderr is closed by its reader, which may still have lines to take out of it.
}
