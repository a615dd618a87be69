// Package child runs one child process and everything it starts, as one blocking func.
//
//	err := child.Run(ctx, child.Spec{Command: "./server", Dir: dir, Env: env}, func(ctx context.Context, p *child.Process) error {
//		… talk over p.Stdin and p.Stdout; ctx ends with the process …
//	})
//
// It is like exec.Cmd with a context, except for what a host of strangers' programs needs:
//
//   - Run returns only when the process is reaped, and nothing that it started is left: not in its process
//     group and, on Linux, not outside it either, as long as it keeps its environment, or without that
//     condition where control groups are left to us (cgroup v2: a container's own, or Delegate=yes). With
//     Guard that holds even if we are killed.
//   - The end is the end of the process, not of its output: a grandchild that holds the pipes open hides no
//     death, and what the process had written before it died is still delivered.
//   - Nothing waits for a child that does not read, does not write, floods stderr, or is stopped.
//
// A process that stays alive and says nothing costs, on Linux, three goroutines with small stacks (the caller's,
// use's and that which waits for stderr), no thread and no buffer.
package child

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/extmesh/extmesh/internal/aside"
)

// Spec says what to run. Command is required; the zero value of all else works.
type Spec struct {
	// Command is the program. With a path separator it is a path, relative to Dir; without one it is
	// looked up in the PATH of Env.
	Command string
	Args    []string // the arguments after the program's own name
	Dir     string   // the working directory; "": the caller's
	Env     []string // the whole environment, KEY=value, the last of a key wins. Nothing else is inherited

	// Grace is how long the process may take, once told to stop, before it gets SIGTERM; SIGKILL follows a
	// second later. 0: 3 s; negative: none.
	Grace time.Duration

	// Linger is how long use may go on after Run's ctx has ended, to finish what is in flight, before the
	// stop begins without it. 0: 500 ms; negative: not at all. Linger + Grace + 1 s is the longest stop.
	Linger time.Duration

	// Farewell, if set, is called once, when the stop begins and before stdin is closed, for the last words of a
	// protocol. It has half a second; the write deadline is set so. If a write was cut off in the middle
	// of a line before, that line has been ended. It is not called for a process that died by itself.
	Farewell func(stdin *Stdin)

	// Stderr, if set, gets each line the process writes to stderr: without its end, valid UTF-8, at most
	// 16 KiB (the rest is cut off, with a mark), after Redact. It is called from one goroutine at a time, in
	// order, and no more often than 200 times a second after a burst of 1000; a line of its own says how many were
	// dropped. A slow Stderr loses lines but never stalls the process. stderr is drained in any case.
	Stderr func(line string)

	// Redact, if set, takes secrets out of a line of stderr before it goes to Stderr or into an
	// ExitError. It may be called from several goroutines at once.
	Redact func(line string) string
}

// The bounds that docs/protocol.md ("A child on stdin and stdout") gives, and those that follow from them.
const (
	defaultGrace  = 3 * time.Second
	defaultLinger = 500 * time.Millisecond
	farewellWait  = 500 * time.Millisecond
	termWait      = time.Second            // from SIGTERM to SIGKILL
	killWait      = 5 * time.Second        // then a process counts as unkillable
	quiet         = 20 * time.Millisecond  // of silence on a pipe whose process is gone, before it counts as ended
	tailWait      = 500 * time.Millisecond // for the last of stderr, before a death is told without it
	noticeWait    = 5 * time.Millisecond   // for a death that use may have noticed first
	eofWait       = 500 * time.Millisecond // for the death behind an EOF, so that one who reads the EOF finds the reason
)

// Process is a running child, as use sees it. Its fields are not to be changed.
type Process struct {
	// PID is the process's id and, on Unix, its group's and session's.
	PID int

	// Stdin is the process's standard input. Run closes it; use may do so before.
	Stdin *Stdin

	// Stdout is the process's standard output, one reader at a time. After the process's end it delivers
	// what is still in the pipe, then io.EOF, even if somebody else holds the pipe open. An io.EOF while
	// ctx is still alive means that the process closed its output and lives.
	//
	// It also has a method for one who wants to hold no memory while the process says nothing:
	//
	//	ReadLazy(buffer func() []byte, release func()) (n int, err error)
	//
	// It is Read, but calls buffer only when it is about to try, and release when there was nothing and it is
	// going to wait; after that it calls buffer again. It reads into what buffer returned last, which the caller
	// still has if release was not called since. buffer returns at least one byte. Neither is called once ReadLazy
	// has returned. On Windows it waits with the buffer in its hands.
	Stdout io.Reader

	hurry func()
}

// Terminate begins the stop at once and without politeness: SIGTERM now, SIGKILL a second later, whatever
// use is doing. It is for a process that is known not to listen. It does not wait.
func (p *Process) Terminate() { p.hurry() }

// Run starts the process and calls use with it, on a goroutine of its own, with a ctx that ends when the
// process does (context.Cause is the *ExitError then). It returns when use has returned, the process is reaped, and its
// group, and on Linux whatever else it left behind, is gone.
//
// The stop begins when use returns, or Linger after ctx has ended, or with Terminate: Farewell, stdin closed,
// after Grace SIGTERM to the group, a second later SIGKILL. A process that ends by itself leaves its group
// SIGTERM and a second later SIGKILL.
//
// If the process could not be started, use is not called and the error says why. If use returned nil and
// the process was alive until then, Run returns nil: it was a clean stop, whatever the exit status. In any
// other case the error is or wraps an *ExitError, and wraps use's error too.
func Run(ctx context.Context, spec Spec, use func(ctx context.Context, p *Process) error) error {
	var l *life
	var err error
	aside.Run(func() { l, err = start(ctx, &spec) })
	if err != nil {
		return err
	}
	if watchOrphans() {
		defer unwatchOrphans()
	}
	ctx2, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	l.all.Go(l.errlog.read) // ends with the pipe, at the latest soon after the process
	var useErr error
	l.all.Go(func() { // ends when use returns: Run's contract
		defer l.leave()
		useErr = use(ctx2, &Process{PID: l.proc.Pid, Stdin: l.stdin, Stdout: l.stdout, hurry: l.hurryUp})
	})
	l.idle(ctx)
	var exit *ExitError
	var left error
	aside.Run(func() {
		stopped := l.attend(ctx)
		if stopped {
			l.stop()
		}
		exit = l.bury(stopped)
		if ctx.Err() != nil { // whoever ends it tells ctx first, and what is derived from it a moment later
			cancel(context.Cause(ctx))
		}
		cancel(exit)
		close(l.buried)
		left = l.sweep()
	})
	<-l.used
	l.close()
	l.all.Wait() // the last line of stderr is handed over, too
	if left != nil {
		return errors.Join(verdict(exit, useErr), left)
	}
	return verdict(exit, useErr)
}

// verdict is what Run returns for the end of a process and the word of the one who used it.
func verdict(exit *ExitError, useErr error) error {
	noticed := errors.Is(useErr, context.Canceled) || errors.Is(useErr, io.EOF)
	switch {
	case useErr == nil && exit.Stopped && exit.Cause == nil:
		return nil
	case useErr == nil, !exit.Stopped && noticed:
		return exit
	case errors.Is(useErr, error(exit)):
		return useErr // it says all that exit does, and where it happened
	}
	e := *exit // not exit itself: use's error may hold it, and a cycle would never unwrap
	e.Cause = useErr
	if exit.Cause != nil {
		e.Cause = errors.Join(exit.Cause, useErr)
	}
	return &e
}

// idle returns when there may be something for attend to do. Most of a life is spent in here, in the poller
// where that can be: a goroutine for the process's end and a select would cost twice the memory.
func (l *life) idle(ctx context.Context) {
	l.all.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer l.all.Done()
		l.handle.wake()
	})
	l.handle.idle()
	if stop() {
		l.all.Done()
	}
}

// attend waits until the process has ended (false) or has to be stopped (true).
func (l *life) attend(ctx context.Context) (stop bool) {
	l.watchExit()
	var lingered <-chan time.Time
	cancelled := ctx.Done()
	for {
		select {
		case <-l.exited:
			return false
		case <-l.used:
			// A dying process closes its pipes before it can be waited for: use may have seen that first.
			return !l.over(noticeWait, nil)
		case <-l.hurry:
			return !l.hasEnded()
		case <-lingered:
			return !l.hasEnded()
		case <-cancelled:
			t := time.NewTimer(l.spec.Linger)
			defer t.Stop()
			lingered, cancelled = t.C, nil
		}
	}
}
