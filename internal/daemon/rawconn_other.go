//go:build !linux || race

package daemon

import (
	"net"
	"time"
)

// newDialer is worth something on Linux only. The race detector has to see system calls: they order what is done on either
// side.
func newDialer(timeout time.Duration) *net.Dialer { return &net.Dialer{Timeout: timeout} }
