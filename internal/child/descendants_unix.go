//go:build unix && !linux

package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// descendants are the process group. Without /proc, descendants that left the group cannot be found.
type descendants struct {
	leader int
	termed bool
}

func newDescendants(p *os.Process, _ string, _ *sysAttr) *descendants {
	return &descendants{leader: p.Pid}
}

func (f *descendants) terminateGroup() { f.terminate() }

// terminate sends SIGTERM to the group, once. SIGCONT follows, so that SIGTERM is already pending when a stopped process
// continues.
func (f *descendants) terminate() {
	if !f.termed {
		f.termed = true
		unix.Kill(-f.leader, unix.SIGTERM)
		unix.Kill(-f.leader, unix.SIGCONT)
	}
}

func (f *descendants) kill() { unix.Kill(-f.leader, unix.SIGKILL) }

// gone reports whether the group is empty. macOS returns EPERM for a group of zombies.
func (f *descendants) gone() bool {
	err := unix.Kill(-f.leader, 0)
	return err == unix.ESRCH || err == unix.EPERM
}

func (f *descendants) close() {}
