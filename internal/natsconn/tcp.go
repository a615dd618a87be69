package natsconn

import (
	"errors"
	"io"
	"net"
	"os"

	"github.com/extmesh/extmesh/internal/rawio"
)

// tcpConn is a TCP connection that package rawio reads and writes. It has TryWrite, and otherwise behaves like any other.
type tcpConn struct {
	*net.TCPConn
	raw *rawio.File
}

func newTCPConn(c *net.TCPConn) (net.Conn, error) {
	raw, err := rawio.New(c)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &tcpConn{c, raw}, nil
}

// Read implements net.Conn.
func (c *tcpConn) Read(p []byte) (int, error) {
	n, err := c.raw.Read(p)
	return n, c.explain("read", err)
}

// Write implements net.Conn.
func (c *tcpConn) Write(p []byte) (int, error) {
	n, err := c.raw.Write(p)
	return n, c.explain("write", err)
}

// TryWrite writes as much of p as fits into the socket's buffer, without waiting.
func (c *tcpConn) TryWrite(p []byte) (int, error) {
	n, err := c.raw.TryWrite(p)
	return n, c.explain("write", err)
}

// explain gives an error the form of net.TCPConn's errors.
func (c *tcpConn) explain(op string, err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case errors.Is(err, os.ErrClosed):
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
