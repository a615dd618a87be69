// Package freeport finds ports for test servers that need a fixed port before they start, for the routes of a cluster
// or for a restart on the same port. A test that needs any free port listens on port 0 instead. The package is for
// tests only.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"
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
	for range 1000 {
		port := first + rand.N(after-first)
		taken, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // the UDP port of the same number is the lock that other processes see
		}
		if listens(port) {
			taken.Close()
			continue
		}
		t.Cleanup(func() { taken.Close() })
		return port
	}
	t.Fatal("no free port")
	return 0
}

// listens reports whether a program listens on a TCP port. It connects to find out. If it listened itself, a child that
// another test starts at that moment would have a copy of the listener from its fork to its exec, and the port would be
// in use for that long.
func listens(port int) bool {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 10*time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
