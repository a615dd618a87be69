package child_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/child"
)

// eventually waits for a condition, at least four times as long as it takes to evaluate it: many read all of /proc.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		began := time.Now()
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("still waiting: %s", what)
			return
		}
		time.Sleep(min(max(4*time.Since(began), 5*time.Millisecond), 500*time.Millisecond))
	}
}

func count(t *testing.T, dir string) int {
	t.Helper()
	e, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// zombies returns this process's children that are not reaped.
func zombies() (found []string) {
	stats, _ := os.ReadDir("/proc")
	for _, e := range stats {
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if _, after, ok := strings.Cut(string(b), ") "); err == nil && ok && strings.HasPrefix(after, fmt.Sprintf("Z %d ", os.Getpid())) {
			found = append(found, string(b))
		}
	}
	return found
}

// everyWay runs a test with each of the ways to find a process that has left the session.
func everyWay(t *testing.T, test func(t *testing.T)) {
	without := func(test func(t *testing.T)) func(t *testing.T) {
		return func(t *testing.T) {
			defer child.WithoutCgroups()()
			test(t)
		}
	}
	t.Run("by marker", without(test))
	t.Run("as orphans", without(func(t *testing.T) {
		if err := child.Subreaper(); err != nil {
			t.Fatal(err)
		}
		defer child.EndSubreaper()
		test(t)
		// The reaper runs while there is a Run, and waits a second before it reaps a session leader.
		child.Run(t.Context(), spec("echo"), func(context.Context, *child.Process) error {
			eventually(t, "no zombies", func() bool { return len(zombies()) == 0 })
			return nil
		})
	}))
	if child.HasCgroups() {
		t.Run("by cgroup", func(t *testing.T) {
			test(t)
			if c := child.Cgroups(child.MarkerPrefix()); len(c) > 0 {
				t.Errorf("cgroups are left: %v", c)
			}
		})
	}
}

// A daemon that left the session is found when the process ends, with and without a stop.
func TestDaemons(t *testing.T) {
	everyWay(t, func(t *testing.T) {
		noSurvivors(t)
		var all sync.WaitGroup
		for _, mode := range []string{
			"daemon ignore-eof", "daemon ignore-term", "daemon stop", "daemon daemon ignore-eof", "fork-wait daemon ignore-term",
			"daemon-exit ignore-eof", "daemon-exit ignore-term",
		} {
			args := strings.Fields(mode)
			all.Go(func() { // ends after its process
				err := run(t, t.Context(), spec(args[0], args[1:]...), func(ctx context.Context, p *child.Process) error {
					untilUp(p)
					if n := len(child.Survivors()); n == 0 {
						t.Error("no process has a marker of this process: the test is useless")
					}
					if args[0] == "daemon-exit" {
						io.WriteString(p.Stdin, "x")
						<-ctx.Done()
					}
					return nil
				})
				if e := new(child.ExitError); errors.As(err, &e) != (args[0] == "daemon-exit") {
					t.Errorf("%s: %v", mode, err)
				}
			})
		}
		all.Wait()
	})
}

// A daemon that left the session and removed its marker is still in the cgroup.
func TestDaemonWithoutAMark(t *testing.T) {
	if !child.HasCgroups() {
		t.Skip("no cgroups to be had here: nothing can find it")
	}
	noSurvivors(t)
	for _, args := range [][]string{{"ignore-eof"}, {"ignore-term"}} {
		err := run(t, t.Context(), spec("daemon-bare", args...), func(ctx context.Context, p *child.Process) error {
			untilUp(p)
			if n := len(child.Survivors()); n != 2 {
				t.Errorf("%d processes, want 2", n)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A process without its main thread has a zombie's state and no environment in /proc/PID, but its other threads run.
func TestDaemonWithoutAMainThread(t *testing.T) {
	everyWay(t, func(t *testing.T) {
		noSurvivors(t)
		err := run(t, t.Context(), spec("daemon", "headless"), func(ctx context.Context, p *child.Process) error {
			untilUp(p)
			eventually(t, "its main thread has ended", func() bool {
				return slices.ContainsFunc(child.Survivors(), func(pid int) bool {
					stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
					return strings.Contains(string(stat), ") Z ")
				})
			})
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// The daemon of another Run is not ended.
func TestDaemonOfAnotherRun(t *testing.T) {
	everyWay(t, func(t *testing.T) {
		noSurvivors(t)
		run(t, t.Context(), spec("daemon", "ignore-eof"), func(ctx context.Context, p *child.Process) error {
			untilUp(p)
			before := child.Survivors()
			run(t, t.Context(), spec("daemon", "ignore-eof"), func(ctx context.Context, p *child.Process) error {
				_, err := untilUp(p)
				return err
			})
			if after := child.Survivors(); fmt.Sprint(after) != fmt.Sprint(before) || len(after) != 2 {
				t.Errorf("survivors before %v, after %v", before, after)
			}
			return nil
		})
	})
}

// An orphan that exits long before its Run ends is reaped, but a child of another part of this program is not.
func TestOrphansAreReaped(t *testing.T) {
	if err := child.Subreaper(); err != nil {
		t.Fatal(err)
	}
	defer child.EndSubreaper()
	noSurvivors(t)
	foreign := exec.Command("sh", "-c", "exit 7")
	s := spec("sh")
	s.Command, s.Args = "sh", []string{"-c", `(setsid sh -c '(sh -c "echo \$\$" &); echo $$' &); cat`}
	err := run(t, t.Context(), s, func(ctx context.Context, p *child.Process) error {
		if err := foreign.Start(); err != nil {
			return err
		}
		r := bufio.NewReader(p.Stdout)
		for range 2 {
			pid, err := r.ReadString('\n')
			if err != nil {
				return err
			}
			eventually(t, "the orphan is reaped", func() bool {
				_, err := os.Stat("/proc/" + strings.TrimSpace(pid))
				return errors.Is(err, os.ErrNotExist)
			})
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := foreign.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("the status of the other child is lost: %v", err)
	}
}

// 200 Runs leave no descriptors, goroutines or zombies.
func TestNoGrowth(t *testing.T) {
	noSurvivors(t)
	if err := child.Subreaper(); err != nil {
		t.Fatal(err)
	}
	defer child.EndSubreaper()
	runOnce := func() {
		s := spec("")
		s.Command, s.Args = "sh", []string{"-c", "echo oops >&2; exit 1"}
		e := new(child.ExitError)
		if err := child.Run(t.Context(), s, untilEnd); !errors.As(err, &e) || e.StderrTail != "oops\n" {
			t.Errorf("got %v", err)
		}
	}
	runOnce()
	fds, goroutines := count(t, "/proc/self/fd"), runtime.NumGoroutine()
	for range 100 {
		runOnce()
	}
	if n := count(t, "/proc/self/fd"); n > fds {
		t.Errorf("%d descriptors, %d before", n, fds)
	}
	eventually(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines })
	if z := zombies(); len(z) > 0 {
		t.Errorf("zombies: %q", z)
	}
}

// 100 concurrent children do not need a thread each.
func TestNoThreadPerChild(t *testing.T) {
	noSurvivors(t)
	const n = 60
	before := count(t, "/proc/self/task")
	var done sync.WaitGroup
	up, release := make(chan struct{}), make(chan struct{})
	for range n { // one after the other: starting them all at once may need more threads
		s := spec("")
		s.Command = "cat"
		done.Go(func() { // ends with release
			child.Run(t.Context(), s, func(ctx context.Context, p *child.Process) error {
				up <- struct{}{}
				<-release
				return nil
			})
		})
		<-up
	}
	if after := count(t, "/proc/self/task"); after > before+n/4 {
		t.Errorf("%d threads with %d children, %d before", after, n, before)
	}
	close(release)
	done.Wait()
}

// If a bridge is killed, the guard ends everything that the bridge started: groups, daemons, processes that ignore EOF or
// SIGTERM, stopped ones, and with cgroups also those without a marker.
func TestGuard(t *testing.T) {
	t.Parallel() // the tests mostly wait, and each checks only its own bridge's children
	modes := []string{"ignore-eof", "ignore-term", "daemon ignore-eof", "daemon ignore-term", "fork-wait daemon ignore-eof", "daemon stop", "stop"}
	test := func(t *testing.T, atLeast int, modes ...string) {
		t.Parallel()
		cmd, in, prefix := startBridge(t, modes...)
		defer in.Close()
		if n := len(child.Belonging(prefix)); n < atLeast {
			t.Fatalf("only %d processes are up", n)
		}
		cmd.Process.Kill()
		cmd.Wait()
		eventually(t, "everything is gone", func() bool { return len(child.Belonging(prefix)) == 0 })
		eventually(t, "so is the guard", func() bool { return len(guards(prefix)) == 0 })
		if c := child.Cgroups(prefix); len(c) > 0 {
			t.Errorf("cgroups are left: %v", c)
		}
	}
	t.Run("by marker", func(t *testing.T) { test(t, 11, append(modes, "no-cgroups")...) })
	if child.HasCgroups() {
		t.Run("by cgroup", func(t *testing.T) { test(t, 13, append(modes, "daemon-bare ignore-term")...) })
	}
}

// A guard ignores signals for the bridge's terminal or group, is replaced when it is killed, and exits without ending any
// process when the bridge ends normally.
func TestGuardIgnoresSignals(t *testing.T) {
	t.Parallel()
	cmd, in, prefix := startBridge(t, "ignore-eof")
	first := guards(prefix)
	if len(first) != 1 {
		t.Fatalf("guards: %v", first)
	}
	eventually(t, "the guard ignores signals", func() bool { return ignores(first[0], syscall.SIGQUIT, syscall.SIGTERM) })
	eventually(t, "the guard has closed inherited descriptors", func() bool {
		links, err := os.ReadDir("/proc/" + first[0] + "/fd")
		return err == nil && !slices.ContainsFunc(links, func(l os.DirEntry) bool {
			to, _ := os.Readlink("/proc/" + first[0] + "/fd/" + l.Name())
			own := l.Name() == "0" || l.Name() == "1" || l.Name() == "2" || strings.HasPrefix(to, "anon_inode:")
			return !own
		})
	})
	for _, sig := range []string{"INT", "TERM", "HUP", "QUIT"} {
		exec.Command("kill", "-"+sig, first[0]).Run()
	}
	if now := guards(prefix); fmt.Sprint(now) != fmt.Sprint(first) {
		t.Errorf("the guard ended after a signal: %v, then %v", first, now)
	}
	exec.Command("kill", "-KILL", first[0]).Run()
	eventually(t, "another guard", func() bool {
		now := guards(prefix)
		return len(now) == 1 && now[0] != first[0]
	})
	if len(child.Belonging(prefix)) == 0 {
		t.Error("the children ended with their guard")
	}
	in.Close() // the bridge returns from main, with its children still running: only the guard could end them
	cmd.Wait()
	eventually(t, "the guard exits", func() bool { return len(guards(prefix)) == 0 })
	left := child.Belonging(prefix)
	if len(left) == 0 {
		t.Error("the guard ended processes although it was dismissed")
	}
	for _, pid := range left {
		p, _ := os.FindProcess(pid)
		p.Kill()
	}
}

// startBridge starts a process that runs each mode as a child and waits until all are up.
func startBridge(t *testing.T, modes ...string) (cmd *exec.Cmd, in io.Closer, prefix string) {
	t.Helper()
	s := spec("bridge", modes...)
	cmd = exec.Command(s.Command, s.Args...)
	cmd.Env = s.Env
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		for _, pid := range child.Belonging(prefix) {
			p, _ := os.FindProcess(pid)
			p.Kill()
		}
		eventually(t, "the cgroups of a bridge that left them are gone", func() bool {
			child.RemoveCgroups(prefix)
			return len(child.Cgroups(prefix)) == 0
		})
	})
	r := bufio.NewReader(stdout)
	lines := 1 // the marker prefix, and one per child
	for _, m := range modes {
		if m != "no-cgroups" {
			lines++
		}
	}
	for i := range lines {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			prefix = strings.TrimSpace(line)
		}
	}
	return cmd, stdin, prefix
}

// ignores reports whether a process ignores signals.
func ignores(pid string, signals ...syscall.Signal) bool {
	status, _ := os.ReadFile("/proc/" + pid + "/status") // if it cannot be read, the result is false
	_, rest, _ := strings.Cut(string(status), "SigIgn:")
	line, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	for _, s := range signals {
		if mask&(1<<(s-1)) == 0 {
			return false
		}
	}
	return err == nil
}

// guards returns the guards for a marker prefix.
func guards(prefix string) (pids []string) {
	procs, _ := os.ReadDir("/proc")
	for _, e := range procs {
		args, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err != nil || !strings.HasSuffix(string(args), "\x00(guard)\x00") {
			continue
		}
		env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if strings.HasPrefix(string(env), "EXTMESH_GUARD="+prefix+"\x00") {
			pids = append(pids, e.Name())
		}
	}
	return pids
}
