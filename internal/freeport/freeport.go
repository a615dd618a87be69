// Package freeport finds ports for test servers that need a fixed port before they start, for the routes of a cluster
// or for a restart on the same port. A test that needs any free port listens on port 0 instead. The package is for
// tests only.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// The range of ports: below those that systems assign to listeners on port 0 and to outgoing connections.
const (
	first = 10_000
	after = 32_000
)

// Addr returns a loopback address to listen on. This package, in this process or another, does not return it again
// before the test ends.
func Addr(t testing.TB) string { return fmt.Sprintf("127.0.0.1:%d", Port(t)) }

// Port returns a port like that of Addr.
func Port(t testing.TB) int {
	t.Helper()
	var err error
	for range 1000 {
		port := first + rand.N(after-first)
		var taken net.PacketConn
		if taken, err = net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			continue // the UDP port of the same number is the lock that other processes see
		}
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			taken.Close()
			continue
		}
		l.Close()
		t.Cleanup(func() { taken.Close() })
		return port
	}
	t.Fatalf("no free port: %v", err)
	return 0
}
