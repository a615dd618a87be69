// Package proc starts, watches and ends the processes that the benchmarks are made of. It is like os/exec with what
// they all need: a log, an end that is waited for, a process that does not outlive its parent.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Process is a program that was started. Its standard error goes to a file.
type Process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	log   string // path
	done  chan struct{}
}

// Start starts a program under a name, with more in its environment. Its log is NAME.log in the directory logs, and
// is appended to.
func Start(logs, name string, env []string, path string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(path, args...), log: filepath.Join(logs, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = endWithUs()
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() { // owned by End, which waits for done; ends with the process
		_ = p.cmd.Wait() // how it ended is of no interest: it was told to
		close(p.done)
	}()
	return p, nil
}

// Build builds programs of this module into a directory. It is to be run from the module's root.
func Build(ctx context.Context, dir string, packages ...string) error {
	args := append([]string{"build", "-o", dir + string(filepath.Separator)}, packages...)
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go build (run this from the module's root): %w\n%s", err, out)
	}
	return nil
}

// UntilInputEnds calls stop when standard input ends, which is how a process learns that its parent is gone where
// the system does not end it.
func UntilInputEnds(stop func()) {
	go func() { // ends with the process, whose last act this is
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill kills the process and waits for its end.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	<-p.done
	return err
}

// End ends the process, by request if it heeds one within six seconds.
func (p *Process) End() {
	_ = Thaw(p.PID()) // one that is stopped cannot end; the rest does not mind
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.stdin.Close()
	select {
	case <-p.done:
	case <-time.After(6 * time.Second):
		_ = p.Kill() // it may have ended this very moment
	}
}

// Said are the lines of the log from an offset on that contain text.
func (p *Process) Said(offset int64, text string) (lines []string) {
	data, err := os.ReadFile(p.log)
	if err != nil || int64(len(data)) < offset {
		return nil
	}
	for line := range strings.Lines(string(data[offset:])) {
		if strings.Contains(line, text) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// LogEnd is where the log ends now.
func (p *Process) LogEnd() int64 {
	info, err := os.Stat(p.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// KillPID kills a process that is not ours to wait for: a bridge's child.
func KillPID(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}
