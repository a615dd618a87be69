//go:build !linux

package child

import (
	"os"
	"sync/atomic"
)

// exitHandle waits for a process in a thread, and reaps it at once: where an end cannot be learnt without
// that, the group is signalled a moment after the leader's number has become free.
type exitHandle struct {
	proc  *os.Process
	state *os.ProcessState
	err   error
}

func (s *sysAttr) handle(p *os.Process) *exitHandle { return &exitHandle{proc: p} }

func (h *exitHandle) idle() {}
func (h *exitHandle) wake() {}

// ended never knows.
func (h *exitHandle) ended() bool { return false }

func (h *exitHandle) wait() { h.state, h.err = h.proc.Wait() }

// reap returns the status, once wait has returned.
func (h *exitHandle) reap() (*os.ProcessState, error) { return h.state, h.err }

func (h *exitHandle) close() {}

func (s *sysAttr) started() {}

// withoutCgroup is Linux's.
func (s *sysAttr) withoutCgroup() bool { return false }

var noCgroup atomic.Bool
