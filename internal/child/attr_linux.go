package child

import (
	"os"
	"syscall"
)

// sysAttr is how a process is started here: in a session of its own, which is a group of its own and keeps
// it from the terminal (its Ctrl-C, and programs that ask for a password there), with a pidfd, and in a
// cgroup where we may make one.
type sysAttr struct {
	attr   *syscall.SysProcAttr
	pidfd  int
	cgroup cgroup
	dir    *os.File // of the cgroup
}

func newSysAttr(mark string) *sysAttr {
	s := &sysAttr{pidfd: -1}
	s.attr = &syscall.SysProcAttr{Setsid: true, PidFD: &s.pidfd}
	if c := newCgroup(mark); c != "" {
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

// started gives back what only the start needed.
func (s *sysAttr) started() {
	if s.dir != nil {
		s.dir.Close()
	}
}

// withoutCgroup reports false if there was none. To be started into a cgroup takes a system call that
// sandboxes like to forbid, and its failure looks like any other.
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
