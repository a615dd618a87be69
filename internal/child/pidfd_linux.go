package child

import "golang.org/x/sys/unix"

// pidfd identifies a process, and not a later one with the same id. If the kernel has no pidfds (before 5.3), it is only
// the id.
type pidfd struct {
	pid int
	fd  int // -1 if there is no pidfd
}

// openPidfd reports false if there is no such process.
func openPidfd(pid int) (pidfd, bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch err {
	case nil:
		return pidfd{pid: pid, fd: fd}, true
	case unix.ENOSYS, unix.EPERM, unix.EMFILE, unix.ENFILE: // old, forbidden by a sandbox, or no descriptor is left
		return pidfd{pid: pid, fd: -1}, true
	}
	return pidfd{fd: -1}, false
}

func (p pidfd) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}

func (p pidfd) signal(sig unix.Signal) {
	if p.fd >= 0 {
		unix.PidfdSendSignal(p.fd, sig, nil, 0)
	} else {
		unix.Kill(p.pid, sig)
	}
}

// exited reports whether the process has exited, reaped or not.
func (p pidfd) exited() bool {
	if p.fd < 0 {
		st, ok := readStat(p.pid)
		return !ok || st.zombie()
	}
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// reap reaps the process if it is a zombie and a child of this process.
func (p pidfd) reap() {
	if p.fd >= 0 {
		reap(unix.P_PIDFD, p.fd)
	} else {
		reap(unix.P_PID, p.pid)
	}
}

// reap reaps the zombies among this process's children that idType and id select.
func reap(idType, id int) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || info.Signo == 0 || idType != unix.P_PGID {
			return
		}
	}
}
