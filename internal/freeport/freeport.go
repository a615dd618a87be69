// Package freeport finds ports for the servers of tests that have to know each other's, or come back on the same one.
// Whoever needs only some port listens on 0 instead. It is for tests only.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// The ports that are given: below those that systems give to whoever asks for any, and to those who dial.
const (
	first = 10_000
	after = 32_000
)

// Addr is an address on loopback to listen on. Until the test's end nobody else is given it by this package, in this
// process or another.
func Addr(t testing.TB) string { return fmt.Sprintf("127.0.0.1:%d", Port(t)) }

// Port is the port of an Addr.
func Port(t testing.TB) int {
	t.Helper()
	var err error
	for range 1000 {
		port := first + rand.N(after-first)
		var taken net.PacketConn
		if taken, err = net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			continue // UDP has ports of its own, which are worth a lock on ours
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
