package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a program that was started. Its standard error is appended to a log file. Its standard input stays open
// until it is to end, or until this program has ended.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{} // closed when it has ended
}

func startProcess(log string, env []string, path string, args ...string) *process {
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	file := must(os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer file.Close()
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = file
	p.stdin = must(p.cmd.StdinPipe())
	check(p.cmd.Start())
	go func() { // owned by end, which waits for done; ends with the process
		_ = p.cmd.Wait() // the exit status does not matter: processes end by signals here
		close(p.done)
	}()
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// end sends SIGTERM and waits; after six seconds it kills the process.
func (p *process) end() {
	_ = signalProcess(p.pid(), sigCont) // a stopped process cannot end
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.stdin.Close()
	select {
	case <-p.done:
	case <-time.After(6 * time.Second):
		_ = p.cmd.Process.Kill() // fails if the process has ended
		<-p.done
	}
}

// SIGSTOP and SIGCONT by their numbers on Linux: this must also compile where they have no names.
const (
	sigCont = syscall.Signal(18)
	sigStop = syscall.Signal(19)
)

// signalProcess sends a signal to a process that this program or another one started.
func signalProcess(pid int, sig os.Signal) error { return must(os.FindProcess(pid)).Signal(sig) }

// cpuTime is the processor time that the threads of a process have used, to the nanosecond. Threads that have ended
// are not included; the Go runtime keeps its threads.
func cpuTime(pid int) (total time.Duration) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is valid
	for _, t := range tasks {
		data, _ := os.ReadFile(t) // fails if the thread has ended
		var ns time.Duration
		fmt.Sscan(string(data), &ns)
		total += ns
	}
	return total
}

// memory is the resident memory of a process in MB: now, and the maximum since the start or resetPeak.
func memory(pid int) (now, peak float64) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // absent on other systems
	for line := range strings.Lines(string(data)) {
		fmt.Sscanf(line, "VmRSS: %f kB", &now)
		fmt.Sscanf(line, "VmHWM: %f kB", &peak)
	}
	return now / 1024, peak / 1024
}

// resetPeak sets the maximum of memory to the present value (proc(5), clear_refs).
func resetPeak(pid int) { check(os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)) }

// usage is the processor time that a process used in a span of time.
type usage struct{ cpu, took time.Duration }

func use(p *process, f func()) usage {
	cpu, start := cpuTime(p.pid()), time.Now()
	f()
	return usage{cpuTime(p.pid()) - cpu, time.Since(start)}
}

func (u usage) share() float64 { return u.cpu.Seconds() / u.took.Seconds() }

func (u usage) String() string { return fmt.Sprintf("%.1f %% of a core", 100*u.share()) }

// until repeats a condition of other processes, which cannot notify this one, until it does not fail. The pause is a
// fiftieth of the time that has passed, so the error of a measured time is at most 2 %.
func until(ctx context.Context, limit time.Duration, what string, condition func()) {
	for start := time.Now(); ; {
		err := attempt(what, condition)
		if err == nil {
			return
		}
		passed := time.Since(start)
		if passed > limit {
			fail("not within %s: %w", limit, err)
		}
		pause(ctx, max(200*time.Microsecond, passed/50))
	}
}

// pause fails if ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
		check(ctx.Err())
	}
}
