package main

import (
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

// process is a program that the stage started. Its standard error goes to a file.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	log   string // path
	done  chan struct{}
}

// start starts a program under a name, with more in its environment.
func (s *stage) start(name string, env []string, path string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), log: filepath.Join(s.logs, name+".log"), done: make(chan struct{})}
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
	go func() { // owned by end, which waits for done; ends with the process
		_ = p.cmd.Wait() // how it ended is of no interest: it was told to
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.done
	return err
}

// end ends the process, by request if it heeds one.
func (p *process) end() {
	_ = thaw(p.pid()) // one that is stopped cannot end; the rest does not mind
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.stdin.Close()
	select {
	case <-p.done:
	case <-time.After(6 * time.Second):
		_ = p.kill() // it may have ended this very moment
	}
}

// said are the lines of the log from an offset on that contain text.
func (p *process) said(offset int64, text string) (lines []string) {
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

// logEnd is where the log ends now.
func (p *process) logEnd() int64 {
	info, err := os.Stat(p.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// killPID kills a process that is not ours to wait for: a bridge's child.
func killPID(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}
