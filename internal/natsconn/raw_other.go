//go:build !linux || race

package natsconn

import "net"

// raw makes a difference on Linux only. The race detector must see the system calls, because they order the
// operations of the two sides.
func raw(tcp *net.TCPConn) (net.Conn, error) { return tcp, nil }
