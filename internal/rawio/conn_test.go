package rawio_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/rawio"
)

// TestConn checks that connections with raw system calls behave like ordinary ones.
func TestConn(t *testing.T) {
	large := bytes.Repeat([]byte("all that fits into no buffer"), 1<<20)
	for _, tt := range []struct {
		name string
		test func(t *testing.T, c, peer net.Conn)
	}{
		{"large, in both directions at once", func(t *testing.T, c, peer net.Conn) {
			go io.Copy(peer, peer) // ends with the connection
			wrote := make(chan error, 1)
			go func() { _, err := c.Write(large); wrote <- err }() // ends below
			got := make([]byte, len(large))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, large) {
				t.Errorf("read: %v; the same: %v", err, bytes.Equal(got, large))
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}
		}},
		{"two writers", func(t *testing.T, c, peer net.Conn) {
			for _, b := range []string{"a", "b"} {
				go c.Write(bytes.Repeat([]byte(b), 1<<20)) // ends below
			}
			got := make([]byte, 2<<20)
			if _, err := io.ReadFull(peer, got); err != nil {
				t.Error(err)
			}
			if s := strings.Trim(string(got), string(got[:1])); strings.Trim(s, s[:1]) != "" {
				t.Error("the two writes are mixed")
			}
		}},
		{"nothing", func(t *testing.T, c, peer net.Conn) {
			if n, err := c.Read(nil); n != 0 || err != nil {
				t.Errorf("read: %d, %v", n, err)
			}
			if n, err := c.Write(nil); n != 0 || err != nil {
				t.Errorf("write: %d, %v", n, err)
			}
		}},
		{"end of file", func(t *testing.T, c, peer net.Conn) {
			peer.Close()
			if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("%d, %v", n, err)
			}
		}},
		{"a read deadline", func(t *testing.T, c, peer net.Conn) {
			c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := c.Read(make([]byte, 1))
			late(t, "read", err)
			c.SetReadDeadline(time.Time{})
			peer.Write([]byte("x"))
			if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Errorf("after that: %d, %v", n, err)
			}
		}},
		{"a write deadline", func(t *testing.T, c, peer net.Conn) {
			c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)) // enough to begin
			n, err := c.Write(large)
			late(t, "write", err)
			if n == 0 || n == len(large) {
				t.Errorf("%d of %d bytes are written", n, len(large))
			}
			peer.(*net.TCPConn).CloseWrite()
			got := make([]byte, n)
			if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, large[:n]) {
				t.Errorf("the peer received different bytes, or %v", err)
			}
		}},
		{"closed during a read", func(t *testing.T, c, peer net.Conn) {
			read := make(chan error, 1)
			go func() { _, err := c.Read(make([]byte, 1)); read <- err }() // ends below
			c.Close()
			if err := <-read; !errors.Is(err, net.ErrClosed) || !strings.HasPrefix(err.Error(), "read tcp 127.0.0.1:") {
				t.Errorf("read: %v", err)
			}
			if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) || !strings.HasPrefix(err.Error(), "write tcp 127.0.0.1:") {
				t.Errorf("write: %v", err)
			}
		}},
		{"a closed peer", func(t *testing.T, c, peer net.Conn) {
			peer.(*net.TCPConn).SetLinger(0)
			peer.Close()
			var err error
			for err == nil { // the first may already be in flight
				_, err = c.Write([]byte("x"))
			}
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) || !strings.Contains(err.Error(), "->127.0.0.1:") {
				t.Error(err)
			}
		}},
	} {
		for _, kind := range []string{"ordinary", "raw"} {
			t.Run(tt.name+"/"+kind, func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				c, err := net.Dial("tcp", l.Addr().String())
				if err == nil && kind == "raw" {
					c, err = rawio.NewConn(c)
				}
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				peer, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer peer.Close()
				tt.test(t, c, peer)
			})
		}
	}
}

func late(t *testing.T, op string, err error) {
	t.Helper()
	var timeout net.Error
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() || !strings.HasPrefix(err.Error(), op+" tcp 127.0.0.1:") {
		t.Errorf("%s: %v", op, err)
	}
}
