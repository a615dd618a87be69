// Package child runs one child process and its descendants, as one blocking func.
//
//	err := child.Run(ctx, child.Spec{Command: "./server", Dir: dir, Env: env}, func(ctx context.Context, p *child.Process) error {
//		… use p.Stdin and p.Stdout; ctx ends with the process …
//	})
//
// It is like exec.Cmd with a context, with these additions for a host of untrusted programs:
//
//   - Run returns only when the process is reaped and none of its descendants is left: neither in its process group
//     nor, on Linux, outside it. Outside the group, descendants are found by their environment, or by their control
//     group if this process may create control groups (cgroup v2: in a container, or with Delegate=yes). With Guard
//     they are ended even if this process is killed.
//   - Run ends with the process, not with its output: a grandchild that keeps the pipes open does not hide the exit,
//     and what the process wrote before its exit is still delivered.
//   - Nothing blocks if a child does not read, does not write, floods stderr, or is stopped by SIGSTOP.
//
// On Linux an idle process costs three goroutines with small stacks (the caller's, use's, and one that waits for
// stderr), no thread and no buffer.
package child

import (
	"context"
	"errors"
	"io"
	"time"
)

// Spec describes the process to run. Command is required; for all other fields the zero value works.
type Spec struct {
	// Command is the program. With a path separator it is a path, relative to Dir; without one it is
	// looked up in the PATH of Env.
	Command string
	Args    []string // the arguments after the program's own name
	Dir     string   // the working directory; "": the caller's
	Env     []string // the whole environment, KEY=value, the last of a key wins. Nothing else is inherited

	// Grace is the time that the process has to exit after its stdin was closed, before it gets SIGTERM; SIGKILL follows
	// a second later. 0: 3 s; negative: none.
	Grace time.Duration

	// Linger is the time that use has to return after Run's ctx has ended, so that calls in flight can finish, before
	// the stop begins. 0: 500 ms; negative: none. A stop takes at most Linger + Grace + 1 s.
	Linger time.Duration

	// BeforeStop, if set, is called once, when the stop begins and before stdin is closed, to write a final message. It
	// has half a second; the write deadline is set accordingly. If an earlier write was interrupted within a line, a
	// line end has been written. It is not called if the process has exited by itself.
	BeforeStop func(stdin *Stdin)

	// Stderr, if set, is called for each line that the process writes to stderr: without its end, valid UTF-8, at most
	// 16 KiB (a longer line is cut and marked), after Redact. It is called from one goroutine at a time, in order, and at
	// most 200 times a second after a burst of 1000; an extra line reports how many lines were dropped. A slow Stderr
	// loses lines but never blocks the process. stderr is read even if Stderr is nil.
	Stderr func(line string)

	// Output, if set, returns the last lines of stdout that were not messages, without secrets: they may contain the reason of
	// its end. It is called after the process has exited, when everything that it wrote to stdout was read, or half a second later.
	Output func() []string

	// Redact, if set, removes secrets from a line of stderr before it is passed to Stderr or stored in an ExitError. It
	// may be called from several goroutines at once.
	Redact func(line string) string
}

// The time limits of docs/protocol.md ("A child on stdin and stdout"), and further ones derived from them.
const (
	defaultGrace   = 3 * time.Second
	defaultLinger  = 500 * time.Millisecond
	beforeStopWait = 500 * time.Millisecond
	termWait       = time.Second            // from SIGTERM to SIGKILL
	killWait       = 5 * time.Second        // after SIGKILL, until a process counts as unkillable
	quiet          = 20 * time.Millisecond  // without data on a pipe after its process has exited, until the pipe counts as ended
	tailWait       = 500 * time.Millisecond // for the last of stderr, before the exit is reported without it
	noticeWait     = 5 * time.Millisecond   // for an exit that use may have noticed first
	eofWait        = 500 * time.Millisecond // for the exit after an EOF, so that the reason is available when the EOF is returned
)

// Process is a running child. Its fields must not be changed.
type Process struct {
	// PID is the process's id and, on Unix, its group's and session's.
	PID int

	// Stdin is the process's standard input. Run closes it; use may do so before.
	Stdin *Stdin

	// Stdout is the process's standard output, for one reader at a time. After the process has exited it delivers what is
	// still in the pipe, then io.EOF, even if another process keeps the pipe open. An io.EOF before ctx has ended means
	// that the process closed its output and is still running.
	Stdout io.Reader

	terminate func()
}

// Terminate begins the stop with SIGTERM now and SIGKILL a second later, even if use is still running. It is for a
// process that does not respond. It does not wait.
func (p *Process) Terminate() { p.terminate() }

// Run starts the process and calls use with it, on a goroutine of its own, with a ctx that ends with the process
// (context.Cause is the *ExitError then). It returns when use has returned, the process is reaped, and its group is gone,
// on Linux with all other descendants.
//
// The stop begins when use returns, or Linger after ctx has ended, or with Terminate: BeforeStop is called, stdin is
// closed, after Grace the group gets SIGTERM, and a second later SIGKILL. If the process exits by itself, its group gets
// SIGTERM immediately and SIGKILL a second later.
//
// If the process cannot be started, use is not called and Run returns the error. If use returned nil while the process
// was running, Run returns nil: it was a clean stop, whatever the exit status. In all other cases the error is or wraps
// an *ExitError, and wraps use's error too.
func Run(ctx context.Context, spec Spec, use func(ctx context.Context, p *Process) error) error {
	running.Add(1)
	defer running.Add(-1)
	r, err := start(ctx, &spec)
	if err != nil {
		return err
	}
	if watchOrphans() {
		defer unwatchOrphans()
	}
	ctx2, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	r.all.Go(r.stderr.read) // ends with the pipe, or shortly after the process
	var useErr error
	r.all.Go(func() { // owned by Run, which waits; ends when use returns
		defer close(r.used)
		useErr = use(ctx2, &Process{PID: r.proc.Pid, Stdin: r.stdin, Stdout: r.stdout, terminate: r.terminate})
	})
	stopped := r.awaitEnd(ctx)
	if stopped {
		r.stop()
	}
	exit := r.finish(stopped)
	if ctx.Err() != nil { // cancelling ctx reaches ctx2 only a moment later, but its cause has priority over exit
		cancel(context.Cause(ctx))
	}
	cancel(exit)
	close(r.finished)
	left := r.endDescendants()
	<-r.used
	r.close()
	r.all.Wait() // also until the last line of stderr is delivered
	if left != nil {
		return errors.Join(result(exit, useErr), left)
	}
	return result(exit, useErr)
}

// result returns the error of Run, from how the process ended and what use returned.
func result(exit *ExitError, useErr error) error {
	noticed := errors.Is(useErr, context.Canceled) || errors.Is(useErr, io.EOF)
	switch {
	case useErr == nil && exit.Stopped && exit.Cause == nil:
		return nil
	case useErr == nil, !exit.Stopped && noticed:
		return exit
	case errors.Is(useErr, error(exit)):
		return useErr // it wraps exit and adds context
	}
	e := *exit // a copy: use's error may wrap exit, and unwrapping a cycle would not end
	e.Cause = useErr
	if exit.Cause != nil {
		e.Cause = errors.Join(exit.Cause, useErr)
	}
	return &e
}

// awaitEnd waits until the process has ended (false) or has to be stopped (true).
func (r *run) awaitEnd(ctx context.Context) (stop bool) {
	r.watchExit()
	var lingered <-chan time.Time
	cancelled := ctx.Done()
	for {
		select {
		case <-r.exited:
			return false
		case <-r.used:
			// An exiting process closes its pipes before it can be waited for: use may have noticed that first.
			return !r.endsWithin(noticeWait, nil)
		case <-r.terminated:
			return !r.hasEnded()
		case <-lingered:
			return !r.hasEnded()
		case <-cancelled:
			t := time.NewTimer(r.spec.Linger)
			defer t.Stop()
			lingered, cancelled = t.C, nil
		}
	}
}
