// Package freeport finds ports for the servers of tests that have to know each other's, or come back on the same one.
// Whoever needs only some port listens on 0 instead. It is for tests only.
package freeport

import (
	"net"
	"testing"
)

// Addr is an address on loopback to listen on. It has had a connection that the listener's side closed first, which the
// kernel remembers for a minute: until then it gives the port to nobody who asks for any, and to whoever asks for this one.
func Addr(t testing.TB) string { return find(t).String() }

// Port is the port of an Addr.
func Port(t testing.TB) int { return find(t).Port }

func find(t testing.TB) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	caller, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	callee, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	callee.Close()
	return l.Addr().(*net.TCPAddr)
}
