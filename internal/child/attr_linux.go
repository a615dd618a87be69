package child

import (
	"os"
	"syscall"
)

// sysAttr describes how a process is started: with a pidfd, in a cgroup if this process may create one, and in a session
// of its own. The session is also a group of its own, and separates the process from the terminal, its Ctrl-C and its
// password prompts.
type sysAttr struct {
	attr   *syscall.SysProcAttr
	pidfd  int
	cgroup cgroup
	dir    *os.File // of the cgroup
}

func newSysAttr(marker string) *sysAttr {
	s := &sysAttr{pidfd: -1}
	s.attr = &syscall.SysProcAttr{Setsid: true, PidFD: &s.pidfd}
	if c := newCgroup(marker); c != "" {
		dir, err := os.Open(string(c))
		if err != nil {
			c.remove()
			return s
		}
		s.cgroup, s.dir = c, dir
		s.attr.UseCgroupFD, s.attr.CgroupFD = true, int(dir.Fd())
	}
	return s
}

// started closes what only the start needed.
func (s *sysAttr) started() {
	if s.dir != nil {
		s.dir.Close()
	}
}

// withoutCgroup removes the cgroup, for a second attempt to start the process; it returns false if there is none.
// Starting a process in a cgroup takes a system call that sandboxes often forbid, with an error like any other.
func (s *sysAttr) withoutCgroup() bool {
	if s.cgroup == "" {
		return false
	}
	s.dir.Close()
	s.cgroup.remove()
	s.cgroup, s.dir = "", nil
	s.attr.UseCgroupFD = false
	return true
}
