//go:build unix && !linux

package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// descendants ends the process group. Without /proc, descendants that left the group cannot be found.
type descendants struct {
	leader int
	termed bool
}

func newDescendants(p *os.Process, _ string, _ *sysAttr) *descendants {
	return &descendants{leader: p.Pid}
}

func (d *descendants) terminateGroup() { d.terminate() }

// terminate sends SIGTERM to the group, once. SIGCONT follows, so that SIGTERM is already pending when a stopped process
// continues.
func (d *descendants) terminate() {
	if !d.termed {
		d.termed = true
		unix.Kill(-d.leader, unix.SIGTERM)
		unix.Kill(-d.leader, unix.SIGCONT)
	}
}

func (d *descendants) kill() { unix.Kill(-d.leader, unix.SIGKILL) }

// gone reports whether the group is empty. macOS returns EPERM for a group of zombies.
func (d *descendants) gone() bool {
	err := unix.Kill(-d.leader, 0)
	return err == unix.ESRCH || err == unix.EPERM
}

func (d *descendants) close() {}
