//go:build linux

package child_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/child"
)

// noSurvivors fails the test if a process that Run started is running at its end.
func noSurvivors(t *testing.T) {
	t.Cleanup(func() {
		for _, pid := range child.Survivors() {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			t.Errorf("still running: %d: %q %s %q", pid, text, stat, env)
		}
	})
}

// run runs a mode and checks that it ends in a reasonable time. The limit is generous, since the machine may be busy.
func run(t *testing.T, ctx context.Context, s child.Spec, use func(ctx context.Context, p *child.Process) error) error {
	t.Helper()
	began := time.Now()
	err := child.Run(ctx, s, use)
	if d := time.Since(began); d > time.Minute {
		t.Errorf("took %v", d)
	}
	return err
}

func exitError(t *testing.T, err error) *child.ExitError {
	t.Helper()
	var e *child.ExitError
	if !errors.As(err, &e) {
		t.Fatalf("got %v (%T), want an ExitError", err, err)
	}
	return e
}

// untilUp waits for the child's first line.
func untilUp(p *child.Process) (*bufio.Reader, error) {
	r := bufio.NewReader(p.Stdout)
	_, err := r.ReadString('\n')
	return r, err
}

// untilEnd reads stdout to its end.
func untilEnd(ctx context.Context, p *child.Process) error {
	_, err := io.Copy(io.Discard, p.Stdout)
	return err
}

func TestCleanStop(t *testing.T) {
	noSurvivors(t)
	err := run(t, t.Context(), spec("echo"), func(ctx context.Context, p *child.Process) error {
		if _, err := io.WriteString(p.Stdin, "hello\n"); err != nil {
			return err
		}
		line, err := bufio.NewReader(p.Stdout).ReadString('\n')
		if line != "hello\n" {
			t.Errorf("read %q, %v", line, err)
		}
		if ctx.Err() != nil {
			t.Error("ctx ended before the process")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestUseErrorOfARunningProcess(t *testing.T) {
	noSurvivors(t)
	bad := errors.New("bad handshake")
	s := spec("echo")
	s.Grace = time.Minute
	err := run(t, t.Context(), s, func(context.Context, *child.Process) error { return bad })
	e := exitError(t, err)
	if !errors.Is(err, bad) || !e.Stopped || e.ExitCode != 0 {
		t.Errorf("got %v: %+v", err, e)
	}
}

func TestExit(t *testing.T) {
	noSurvivors(t)
	var cause error
	err := run(t, t.Context(), spec("exit", "3", "first", "ünable to go on\n"), func(ctx context.Context, p *child.Process) error {
		<-ctx.Done()
		cause = context.Cause(ctx)
		return ctx.Err()
	})
	for name, err := range map[string]error{"Run": err, "the context": cause} {
		e := exitError(t, err)
		if e.ExitCode != 3 || e.Signal != "" || e.StderrTail != "first\nünable to go on\n" || e.Stopped || e.Uptime <= 0 || e.Cause != nil {
			t.Errorf("%s: %+v", name, e)
		}
		if s := e.Error(); !strings.HasPrefix(s, "exit status 3 after ") || !strings.HasSuffix(s, ", stderr: ünable to go on") {
			t.Errorf("%s: %q", name, s)
		}
	}
}

func TestExitBySignal(t *testing.T) {
	noSurvivors(t)
	e := exitError(t, run(t, t.Context(), spec("self-kill"), untilEnd))
	if e.ExitCode != -1 || e.Signal != "SIGKILL" || e.Status() != "signal SIGKILL" {
		t.Errorf("got %+v", e)
	}
}

func TestUseErrorOfAnExitedProcess(t *testing.T) {
	noSurvivors(t)
	bad := errors.New("no answer")
	wrapped := run(t, t.Context(), spec("exit", "3"), func(ctx context.Context, p *child.Process) error {
		<-ctx.Done()
		return errors.Join(bad, context.Cause(ctx))
	})
	plain := run(t, t.Context(), spec("exit", "3"), func(ctx context.Context, p *child.Process) error {
		<-ctx.Done()
		return bad
	})
	for _, err := range []error{wrapped, plain} {
		if e := exitError(t, err); e.ExitCode != 3 || !errors.Is(err, bad) || e.Stopped {
			t.Errorf("got %v: %+v", err, e)
		}
	}
}

// What the process wrote before it exited is delivered to a reader that reads late.
func TestAnswersInThePipeAtTheEnd(t *testing.T) {
	noSurvivors(t)
	run(t, t.Context(), spec("large-output"), func(ctx context.Context, p *child.Process) error {
		<-ctx.Done()
		time.Sleep(50 * time.Millisecond) // longer than the allowed pause in the output; there is no condition to wait for
		b, err := io.ReadAll(p.Stdout)
		if len(b) != 60009 || err != nil {
			t.Errorf("read %d bytes, %v", len(b), err)
		}
		return nil
	})
}

func TestGrandchildHoldsThePipes(t *testing.T) {
	noSurvivors(t)
	for _, mode := range []string{"ignore-eof", "ignore-term"} {
		// The grandchild is killed a second after the process's end, which on a busy machine may be before the check.
		for tries, done := 1, false; !done; tries++ {
			began := time.Now()
			e := exitError(t, run(t, t.Context(), spec("fork", mode), func(ctx context.Context, p *child.Process) error {
				<-ctx.Done()
				b, err := io.ReadAll(p.Stdout)
				if string(b) != "up\n" || err != nil {
					t.Errorf("%s: read %q, %v", mode, b, err)
				}
				seen := mode == "ignore-eof" || len(child.Survivors()) > 0
				done = seen || tries == 5 || time.Since(began) < time.Second
				if done && !seen {
					t.Error("stdout ended with the grandchild, not with the process")
				}
				return nil
			}))
			if e.ExitCode != 0 || e.Stopped {
				t.Errorf("%s: got %+v", mode, e)
			}
		}
	}
}

func TestStopSteps(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for mode, signal := range map[string]string{"ignore-eof": "SIGTERM", "stop": "SIGTERM", "ignore-term": "SIGKILL"} {
		s := spec(mode)
		s.Grace = 50 * time.Millisecond
		all.Go(func() { // ends with the process
			var cancelled time.Time
			ctx, cancel := context.WithCancel(t.Context())
			e := exitError(t, run(t, ctx, s, func(ctx context.Context, p *child.Process) error {
				if _, err := untilUp(p); err != nil {
					t.Error(err)
				}
				cancelled = time.Now()
				cancel()
				<-ctx.Done()
				return ctx.Err()
			}))
			d := time.Since(cancelled)
			slow := e.Signal == "SIGKILL" && d >= s.Grace+time.Second // a busy machine, or one that ignores SIGTERM
			if e.Signal != signal && !slow || !e.Stopped || !errors.Is(e, context.Canceled) {
				t.Errorf("%s: got %v", mode, e)
			}
			if d < s.Grace || signal == "SIGKILL" && !slow {
				t.Errorf("%s: ended after %v, which is too soon", mode, d)
			}
		})
	}
	all.Wait()
}

func TestTerminate(t *testing.T) {
	noSurvivors(t)
	var terminated time.Time
	e := exitError(t, run(t, t.Context(), spec("ignore-eof"), func(ctx context.Context, p *child.Process) error {
		if _, err := untilUp(p); err != nil {
			t.Error(err)
		}
		terminated = time.Now()
		p.Terminate()
		p.Terminate()
		<-ctx.Done()
		return errors.New("hung")
	}))
	slow := e.Signal == "SIGKILL" && time.Since(terminated) >= time.Second // a busy machine
	if e.Signal != "SIGTERM" && !slow || !e.Stopped {
		t.Errorf("got %v", e)
	}
}

// The process is stopped although use does not return when its ctx ends.
func TestLinger(t *testing.T) {
	noSurvivors(t)
	s := spec("echo")
	s.Linger = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	err := run(t, ctx, s, func(ctx context.Context, p *child.Process) error {
		cancel()
		return untilEnd(ctx, p)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestClosesStdoutButRuns(t *testing.T) {
	noSurvivors(t)
	err := run(t, t.Context(), spec("close-stdout"), func(ctx context.Context, p *child.Process) error {
		if _, err := io.Copy(io.Discard, p.Stdout); err != nil || ctx.Err() != nil {
			t.Errorf("read %v, ctx %v", err, ctx.Err())
		}
		return io.ErrUnexpectedEOF
	})
	if e := exitError(t, err); !e.Stopped || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
}

func TestDoesNotReadStdin(t *testing.T) {
	noSurvivors(t)
	s := spec("ignore-eof")
	s.Grace = 50 * time.Millisecond
	s.BeforeStop = func(in *child.Stdin) { io.WriteString(in, "bye\n") }
	err := run(t, t.Context(), s, func(ctx context.Context, p *child.Process) error {
		big := make([]byte, 1<<20)
		n, err := p.Stdin.TryWrite(big)
		if n == 0 || n == len(big) || err != nil {
			t.Errorf("first attempt: %d, %v", n, err)
		}
		if n, err := p.Stdin.TryWrite(big); n != 0 || err != nil {
			t.Errorf("second attempt: %d, %v", n, err)
		}
		p.Stdin.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := p.Stdin.Write(big); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %v", err)
		}
		if n, err := p.Stdin.TryWrite(big); n != 0 || err != nil {
			t.Errorf("after the deadline: %d, %v", n, err)
		}
		p.Stdin.SetWriteDeadline(time.Time{})
		blocked := make(chan error)
		go func() { _, err := p.Stdin.Write(big); blocked <- err }() // ends when the pipe is closed
		go func() { time.Sleep(20 * time.Millisecond); p.Stdin.Close() }()
		if err := <-blocked; !errors.Is(err, os.ErrClosed) {
			t.Errorf("a write across Close: %v", err)
		}
		if _, err := p.Stdin.TryWrite(big); !errors.Is(err, os.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWriteToAnExitedProcess(t *testing.T) {
	noSurvivors(t)
	exitError(t, run(t, t.Context(), spec("exit", "0"), func(ctx context.Context, p *child.Process) error {
		<-ctx.Done()
		if _, err := p.Stdin.TryWrite([]byte("x\n")); err == nil {
			t.Error("TryWrite succeeded")
		}
		if _, err := p.Stdin.Write([]byte("x\n")); err == nil {
			t.Error("Write succeeded")
		}
		return nil
	}))
}

// The final message begins on a new line after an interrupted write.
func TestBeforeStop(t *testing.T) {
	noSurvivors(t)
	s := spec("echo")
	s.BeforeStop = func(in *child.Stdin) { io.WriteString(in, "bye\n\n") }
	got := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	s.Linger, s.Grace = 20*time.Millisecond, time.Minute
	err := run(t, ctx, s, func(ctx context.Context, p *child.Process) error {
		io.WriteString(p.Stdin, "whole\nto")
		p.Stdin.TryWrite([]byte("rn"))
		cancel()
		b, err := io.ReadAll(p.Stdout)
		got <- string(b)
		return err
	})
	if s := <-got; err != nil || s != "whole\ntorn\nbye\n\n" {
		t.Errorf("read %q, %v", s, err)
	}
}

func TestTryWriteAllocatesNothing(t *testing.T) {
	noSurvivors(t)
	run(t, t.Context(), spec("close-stdout"), func(ctx context.Context, p *child.Process) error {
		line := []byte("x\n")
		if n := testing.AllocsPerRun(100, func() { p.Stdin.TryWrite(line) }); n > 0 {
			t.Errorf("%v allocations", n)
		}
		return nil
	})
}

func TestEnvironment(t *testing.T) {
	noSurvivors(t)
	dir := t.TempDir()
	exe, _ := os.Executable()
	if err := os.Symlink(exe, dir+"/prog"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("INHERITED", "1")
	for _, tt := range []struct{ command, dir, path string }{
		{"./prog", dir, ""},
		{"prog", dir, "/nonexistent:" + dir},
		{"prog", dir, "."},
		{dir + "/prog", dir, ""},
	} {
		s := spec("env", "INHERITED", "A", "EXTMESH_GUARD")
		s.Command, s.Dir = tt.command, tt.dir
		s.Env = append(s.Env, "A=1", "A=2", "PATH="+tt.path, "EXTMESH_COOKIE=mine", "EXTMESH_GUARD=x", "not a variable")
		exitError(t, run(t, t.Context(), s, func(ctx context.Context, p *child.Process) error {
			b, err := io.ReadAll(p.Stdout)
			want := dir + " " + tt.command + "\nINHERITED= false\nA=2 true\nEXTMESH_GUARD= false\n"
			if string(b) != want || err != nil {
				t.Errorf("%s: read %q, %v; want %q", tt.command, b, err, want)
			}
			return nil
		}))
	}
}

// The child's standard streams are blocking, since programs do not expect EAGAIN on them.
func TestStreamsBlock(t *testing.T) {
	exitError(t, run(t, t.Context(), spec("flags"), func(ctx context.Context, p *child.Process) error {
		b, err := io.ReadAll(p.Stdout)
		if string(b) != "false\nfalse\nfalse\n" || err != nil {
			t.Errorf("non-blocking: %q, %v", b, err)
		}
		return nil
	}))
}

func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(dir+"/"+name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("plain", "#!/bin/sh\n", 0o644)
	write("orphan", "#!/no/such/interpreter\n", 0o755)
	write("bare", "echo hello\n", 0o755)
	for _, tt := range []struct {
		spec child.Spec
		want string
	}{
		{child.Spec{}, "the command is empty"},
		{child.Spec{Command: "plain", Dir: dir, Env: []string{"PATH=" + dir}}, `"plain" is not in the PATH it would run with (` + dir + ")"},
		{child.Spec{Command: "./missing", Dir: dir}, "no such file"},
		{child.Spec{Command: "./plain", Dir: dir}, "not executable (chmod +x)"},
		{child.Spec{Command: "./orphan", Dir: dir}, "the interpreter in its first line"},
		{child.Spec{Command: "./bare", Dir: dir}, "has no #! line"},
		{child.Spec{Command: "/bin/sh", Dir: dir + "/gone"}, "its directory " + dir + "/gone cannot be entered"},
		{child.Spec{Command: "/bin/sh", Args: []string{"a\x00b"}}, "invalid argument"},
	} {
		err := child.Run(t.Context(), tt.spec, func(context.Context, *child.Process) error {
			t.Errorf("%q: use was called", tt.spec.Command)
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.spec.Command, err, tt.want)
		}
		start, ok := errors.AsType[*child.StartError](err)
		if permanent := tt.spec.Command != "" && tt.spec.Args == nil; !ok || start.Permanent() != permanent {
			t.Errorf("%q: %#v, want permanent %t", tt.spec.Command, err, permanent)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := child.Run(ctx, spec("echo"), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with a ctx that has ended: %v", err)
	}
}
