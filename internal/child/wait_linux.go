package child

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// exitHandle is what a process's end is waited for on: a pidfd in the runtime's poller, so that the wait
// costs a goroutine and no thread. Where the kernel has none (before 5.4, or forbidden) it is a thread.
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
	h.pidfd = os.NewFile(uintptr(s.pidfd), "pidfd")
	return h
}

// wait returns when the process has ended, without reaping it: as long as it is a zombie its number, which
// is its group's too, is given to nobody else.
func (h *exitHandle) wait() {
	if h.pidfd != nil {
		rc, err := h.pidfd.SyscallConn()
		if err == nil {
			err = rc.Read(func(fd uintptr) bool { return ended(unix.P_PIDFD, int(fd), unix.WNOHANG) })
		}
		if err == nil || errors.Is(err, os.ErrClosed) { // close: nobody wants to know any more
			return
		}
	}
	ended(unix.P_PID, h.proc.Pid, 0)
}

// ended asks for the end of a child of ours and leaves it waitable.
func ended(idType, id, flags int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOWAIT|flags, nil)
		switch err {
		case unix.EINTR:
			continue
		case nil:
			return info.Signo != 0
		case unix.EAGAIN:
			return false
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
