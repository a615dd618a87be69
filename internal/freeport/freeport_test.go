package freeport_test

import (
	"net"
	"testing"

	"github.com/extmesh/extmesh/internal/freeport"
)

// TestAddr: who asks for this address gets it.
func TestAddr(t *testing.T) {
	for range 20 {
		l, err := net.Listen("tcp", freeport.Addr(t))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
