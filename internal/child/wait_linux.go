package child

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// exitHandle is what a process's end is waited for on: a pidfd in the runtime's poller, so that the wait
// costs no thread. Where the kernel has none that can be waited for (before 5.3, or forbidden) it is a thread.
type exitHandle struct {
	pidfd *os.File
	proc  *os.Process
}

func (s *sysAttr) handle(p *os.Process) *exitHandle {
	h := &exitHandle{proc: p}
	if s.pidfd < 0 {
		return h
	}
	// NewFile puts a descriptor into the poller only if it is non-blocking already.
	if err := unix.SetNonblock(s.pidfd, true); err != nil {
		unix.Close(s.pidfd)
		return h
	}
	f := os.NewFile(uintptr(s.pidfd), "pidfd")
	if f.SetReadDeadline(time.Time{}) != nil { // the poller does not take it
		f.Close()
		return h
	}
	h.pidfd = f
	return h
}

// idle returns when the process has ended or wake has been called, ever; at once where there is no pidfd.
func (h *exitHandle) idle() {
	if h.pidfd != nil {
		h.await()
	}
}

// wake ends idle. It may be called at any time.
func (h *exitHandle) wake() {
	if h.pidfd != nil {
		h.pidfd.SetReadDeadline(time.Unix(1, 0))
	}
}

// wait returns when the process has ended, or after close.
func (h *exitHandle) wait() {
	if h.pidfd == nil {
		h.look(0)
		return
	}
	for errors.Is(h.await(), os.ErrDeadlineExceeded) {
		h.pidfd.SetReadDeadline(time.Time{}) // wake is for idle
	}
}

func (h *exitHandle) await() error {
	rc, err := h.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return rc.Read(func(uintptr) bool { return h.ended() })
}

// ended reports whether the process has ended.
func (h *exitHandle) ended() bool { return h.look(unix.WNOHANG) }

// look asks for the end without reaping: as long as the process is a zombie its number, which is its group's
// too, is given to nobody else.
func (h *exitHandle) look(flags int) bool {
	for {
		var info unix.Siginfo
		switch unix.Waitid(unix.P_PID, h.proc.Pid, &info, unix.WEXITED|unix.WNOWAIT|flags, nil) {
		case unix.EINTR:
			continue
		case nil:
			return info.Signo != 0
		}
		return true // ECHILD: somebody reaped it behind our back
	}
}

// close lets go of the handle; a wait returns.
func (h *exitHandle) close() {
	if h.pidfd != nil {
		h.pidfd.Close()
	}
}

// reap takes the process's status, once wait has returned.
func (h *exitHandle) reap() (*os.ProcessState, error) { return h.proc.Wait() }
