package freeport_test

import (
	"net"
	"testing"

	"github.com/extmesh/extmesh/internal/freeport"
)

// TestAddr: an address can be listened on repeatedly, and is never returned twice.
func TestAddr(t *testing.T) {
	given := map[string]bool{}
	for range 200 {
		addr := freeport.Addr(t)
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
