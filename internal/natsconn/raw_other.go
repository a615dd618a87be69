//go:build !linux || race

package natsconn

import "net"

// raw is worth something on Linux only. The race detector has to see system calls: they order what is done on either
// side.
func raw(tcp *net.TCPConn) (net.Conn, error) { return tcp, nil }
