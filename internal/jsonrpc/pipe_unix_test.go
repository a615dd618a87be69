//go:build unix

package jsonrpc

import (
	"io"
	"os"
	"syscall"
)

// tryWriter offers TryWrite over a pipe, as a child's standard input does.
type tryWriter struct{ *os.File }

func (w tryWriter) TryWrite(p []byte) (n int, err error) {
	raw, err := w.SyscallConn()
	if err != nil {
		return 0, err
	}
	werr := raw.Write(func(fd uintptr) bool {
		if n, err = syscall.Write(int(fd), p); n < 0 {
			n = 0
		}
		if err == syscall.EAGAIN {
			err = nil
		}
		return true
	})
	if err == nil {
		err = werr
	}
	return n, err
}

// lazyPipe offers ReadLazy over a pipe, as a child's standard output does.
type lazyPipe struct {
	*os.File
	raw     syscall.RawConn
	attempt func(fd uintptr) bool

	buffer  func() []byte
	release func()
	n       int
	err     error
}

func newLazyPipe(f *os.File) (*lazyPipe, error) {
	raw, err := f.SyscallConn()
	p := &lazyPipe{File: f, raw: raw}
	p.attempt = func(fd uintptr) bool {
		p.n, p.err = syscall.Read(int(fd), p.buffer())
		if p.err == syscall.EAGAIN {
			p.release()
			return false
		}
		return true
	}
	return p, err
}

func (p *lazyPipe) ReadLazy(buffer func() []byte, release func()) (int, error) {
	p.buffer, p.release = buffer, release
	if err := p.raw.Read(p.attempt); err != nil {
		return 0, err
	}
	if p.n == 0 && p.err == nil {
		return 0, io.EOF
	}
	return max(p.n, 0), p.err
}
