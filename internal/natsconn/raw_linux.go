//go:build linux && !race

package natsconn

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/extmesh/extmesh/internal/rawio"
)

// rawConn is a TCP connection that package rawio reads and writes. An operation that would block waits in Go's
// poller, as with any other connection, where deadlines and Close end it.
type rawConn struct {
	net.Conn
	rc   syscall.RawConn
	r, w half

	mu      sync.Mutex
	until   time.Time // the deadline for writing
	waiting bool      // a write waits in the poller, which has the deadline
}

// half is one direction. Its op is stored so that the function for RawConn is allocated only once.
type half struct {
	mu  sync.Mutex // one read, one write at a time
	op  func(fd uintptr) bool
	p   []byte
	n   int
	err error
}

func raw(tcp *net.TCPConn) (net.Conn, error) {
	rc, err := tcp.SyscallConn()
	if err != nil {
		tcp.Close()
		return nil, err
	}
	c := &rawConn{Conn: tcp, rc: rc}
	c.r.op, c.w.op = c.r.read, c.write
	return c, nil
}

// read returns false if it has to wait.
func (h *half) read(fd uintptr) bool {
	n, err := rawio.Read(fd, h.p)
	h.n, h.err = n, os.NewSyscallError("read", err)
	return err != syscall.EAGAIN
}

// write returns true when everything is written.
func (c *rawConn) write(fd uintptr) bool {
	h := &c.w
	for h.n < len(h.p) {
		n, err := rawio.Write(fd, h.p[h.n:])
		if err == syscall.EAGAIN {
			c.wait(true)
			return false
		}
		if err != nil {
			h.err = os.NewSyscallError("write", err)
			return true
		}
		h.n += n
	}
	h.err = nil
	return true
}

// do performs one read or write of p. wait is RawConn's Read or Write, which waits in the poller.
func (h *half) do(p []byte, wait func(func(uintptr) bool) error) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.p, h.n, h.err = p, 0, nil
	err := wait(h.op)
	h.p = nil
	if err == nil {
		err = h.err
	}
	return h.n, err
}

// Read implements net.Conn like net.TCPConn.
func (c *rawConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.r.do(p, c.rc.Read)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, c.explain("read", err)
}

// Write implements net.Conn like net.TCPConn.
func (c *rawConn) Write(p []byte) (int, error) {
	n, err := c.w.do(p, c.writeWith)
	return n, c.explain("write", err)
}

// writeWith is RawConn.Write; afterwards it clears the deadline that op has set in the poller.
func (c *rawConn) writeWith(op func(fd uintptr) bool) error {
	err := c.rc.Write(op)
	if c.waiting { // only the writer changes it
		c.wait(false)
	}
	return err
}

// SetWriteDeadline implements net.Conn. It is called for each write, but hardly any write waits: the poller gets the
// deadline only if one does, because setting it costs as much as the rest of a small write.
func (c *rawConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	if !c.waiting {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// wait records whether a write waits, and sets or clears the deadline in the poller.
func (c *rawConn) wait(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if yes == c.waiting {
		return
	}
	c.waiting = yes
	if yes {
		c.Conn.SetWriteDeadline(c.until)
	} else {
		c.Conn.SetWriteDeadline(time.Time{})
	}
}

// explain gives an error the form of net.TCPConn's errors.
func (c *rawConn) explain(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if e, ok := err.(*net.OpError); ok { // an error of RawConn's wait
		err = e.Err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
