//go:build unix && !linux

package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// family is a process's group. Without /proc, what left the group is out of reach.
type family struct {
	leader int
	termed bool
}

func newFamily(p *os.Process, _ string, _ *sysAttr) *family { return &family{leader: p.Pid} }

func (f *family) terminateGroup() { f.terminate() }

// terminate asks the group to end, once. SIGCONT comes second, so that a stopped process finds SIGTERM
// waiting when it wakes up.
func (f *family) terminate() {
	if !f.termed {
		f.termed = true
		unix.Kill(-f.leader, unix.SIGTERM)
		unix.Kill(-f.leader, unix.SIGCONT)
	}
}

func (f *family) kill() { unix.Kill(-f.leader, unix.SIGKILL) }

// gone reports whether the group is empty. EPERM is what macOS says of a group of zombies.
func (f *family) gone() bool {
	err := unix.Kill(-f.leader, 0)
	return err == unix.ESRCH || err == unix.EPERM
}

func (f *family) close() {}
