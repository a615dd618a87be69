package child

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// exitHandle waits for the end of a process: with a pidfd in the runtime's poller, so that waiting needs no thread. If the
// kernel has no pidfd that can be polled (before 5.3, or if it is forbidden) it uses a thread.
type exitHandle struct {
	pidfd *os.File
	proc  *os.Process
}

func (s *sysAttr) handle(p *os.Process) *exitHandle {
	h := &exitHandle{proc: p}
	if s.pidfd < 0 {
		return h
	}
	// NewFile adds a descriptor to the poller only if it is non-blocking.
	if err := unix.SetNonblock(s.pidfd, true); err != nil {
		unix.Close(s.pidfd)
		return h
	}
	f := os.NewFile(uintptr(s.pidfd), "pidfd")
	if f.SetReadDeadline(time.Time{}) != nil { // the poller does not support it
		f.Close()
		return h
	}
	h.pidfd = f
	return h
}

// wait returns when the process has ended, or after close.
func (h *exitHandle) wait() {
	if h.pidfd == nil {
		h.check(0)
		return
	}
	if rc, err := h.pidfd.SyscallConn(); err == nil { // otherwise it is closed
		_ = rc.Read(func(uintptr) bool { return h.ended() })
	}
}

// ended reports whether the process has ended.
func (h *exitHandle) ended() bool { return h.check(unix.WNOHANG) }

// check waits for the end without reaping: as long as the process is a zombie, its id, which is also the id of its group,
// is not used again.
func (h *exitHandle) check(flags int) bool {
	for {
		var info unix.Siginfo
		switch unix.Waitid(unix.P_PID, h.proc.Pid, &info, unix.WEXITED|unix.WNOWAIT|flags, nil) {
		case unix.EINTR:
			continue
		case nil:
			return info.Signo != 0
		}
		return true // ECHILD: another part of the program has reaped it
	}
}

// close closes the pidfd; a wait returns.
func (h *exitHandle) close() {
	if h.pidfd != nil {
		h.pidfd.Close()
	}
}

// reap returns the process's status, after wait has returned.
func (h *exitHandle) reap() (*os.ProcessState, error) { return h.proc.Wait() }
