package freeport

import (
	"net"
	"testing"
)

// TestAddr: an address can be listened on repeatedly, and is never returned twice.
func TestAddr(t *testing.T) {
	given := map[string]bool{}
	for range 200 {
		addr := Addr(t)
		if given[addr] {
			t.Errorf("%s is returned twice", addr)
		}
		given[addr] = true
		for range 2 {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
		}
	}
}

// TestListens: a port on which a program listens is not free.
func TestListens(t *testing.T) {
	port := Port(t)
	if listens(port) {
		t.Errorf("port %d is in use", port)
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if !listens(port) {
		t.Errorf("port %d is free", port)
	}
}
