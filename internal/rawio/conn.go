package rawio

import (
	"errors"
	"io"
	"net"
	"os"
)

// Conn is a TCP connection, or one to a Unix socket, that is read and written without notifying Go's scheduler. It has
// TryWrite, and otherwise behaves like any other.
type Conn struct {
	net.Conn
	raw *File
}

// NewConn returns a Conn for c, or c itself if it is of another kind. It closes c after an error.
func NewConn(c net.Conn) (net.Conn, error) {
	source, ok := c.(Source)
	if !ok {
		return c, nil
	}
	raw, err := New(source)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &Conn{c, raw}, nil
}

// Listener accepts Conns.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return NewConn(c)
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.raw.Read(p)
	return n, c.explain("read", err)
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.raw.Write(p)
	return n, c.explain("write", err)
}

// TryWrite writes as much of p as fits into the socket's buffer, without waiting.
func (c *Conn) TryWrite(p []byte) (int, error) {
	n, err := c.raw.TryWrite(p)
	return n, c.explain("write", err)
}

// explain gives an error the form of package net's errors.
func (c *Conn) explain(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if raw, ok := err.(*net.OpError); ok { // of syscall.RawConn, with the operation raw-read
		err = raw.Err
	}
	if errors.Is(err, os.ErrClosed) {
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
