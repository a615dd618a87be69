//go:build !linux

package child

import (
	"os"
	"sync/atomic"
)

// exitHandle waits for a process on a thread, and reaps it immediately. These systems cannot wait without reaping, so the
// group is signalled shortly after the leader's id has become free.
type exitHandle struct {
	proc  *os.Process
	state *os.ProcessState
	err   error
}

func (s *sysAttr) handle(p *os.Process) *exitHandle { return &exitHandle{proc: p} }

// ended always returns false: it cannot be determined without waiting.
func (h *exitHandle) ended() bool { return false }

func (h *exitHandle) wait() { h.state, h.err = h.proc.Wait() }

// reap returns the status, after wait has returned.
func (h *exitHandle) reap() (*os.ProcessState, error) { return h.state, h.err }

func (h *exitHandle) close() {}

func (s *sysAttr) started() {}

// withoutCgroup returns false: there are no cgroups.
func (s *sysAttr) withoutCgroup() bool { return false }

var noCgroup atomic.Bool
