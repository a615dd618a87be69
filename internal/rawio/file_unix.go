//go:build unix

package rawio

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Source is what a File reads and writes: an *os.File or a *net.TCPConn, for example.
type Source interface {
	io.ReadWriter
	syscall.Conn
}

// File reads and writes a Source. One read and one write may run at the same time. Its errors are os.ErrDeadlineExceeded,
// os.ErrClosed, or a syscall.Errno in an os.SyscallError.
type File struct {
	raw  syscall.RawConn
	r, w half
}

// half is one direction. Its functions are stored so that they are allocated only once.
type half struct {
	mu   sync.Mutex
	p    []byte
	n    int
	err  error
	once func(fd uintptr)
	wait func(fd uintptr) (done bool)
}

// New returns a File for c, which stays the owner of its descriptor and its deadlines.
func New(c Source) (*File, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	f := &File{raw: raw}
	r, w := &f.r, &f.w
	r.once = func(fd uintptr) { r.n, r.err = again(unix.SYS_READ, fd, r.p) }
	r.wait = func(fd uintptr) bool { r.once(fd); return r.err != unix.EAGAIN }
	w.once = func(fd uintptr) { w.n, w.err = again(unix.SYS_WRITE, fd, w.p) }
	w.wait = func(fd uintptr) bool {
		for w.n < len(w.p) {
			n, err := again(unix.SYS_WRITE, fd, w.p[w.n:])
			if w.err = err; err != nil {
				return err != unix.EAGAIN
			}
			w.n += n
		}
		w.err = nil
		return true
	}
	return f, nil
}

// Read reads like the Source.
func (f *File) Read(p []byte) (int, error) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	f.r.p, f.r.n, f.r.err = p, 0, nil
	n, err := f.r.outcome("read", f.raw.Read(f.r.wait))
	return n, eof(p, n, err)
}

// TryRead reads once, without waiting. If there is nothing to read it returns 0 and no error.
func (f *File) TryRead(p []byte) (int, error) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	f.r.p, f.r.n, f.r.err = p, 0, nil
	err := f.raw.Control(f.r.once)
	if f.r.err == unix.EAGAIN {
		return 0, nil
	}
	n, err := f.r.outcome("read", err)
	return n, eof(p, n, err)
}

// Write writes all of p, and waits as long as p does not fit.
func (f *File) Write(p []byte) (int, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.p, f.w.n, f.w.err = p, 0, nil
	return f.w.outcome("write", f.raw.Write(f.w.wait))
}

// TryWrite writes as much of p as fits, in one attempt that never waits; deadlines do not apply. n < len(p) without an
// error means that the rest does not fit, or that another write is in progress.
func (f *File) TryWrite(p []byte) (n int, err error) {
	if !f.w.mu.TryLock() {
		return 0, nil
	}
	defer f.w.mu.Unlock()
	f.w.p, f.w.n, f.w.err = p, 0, nil
	err = f.raw.Control(f.w.once)
	if f.w.err == unix.EAGAIN {
		return 0, nil
	}
	return f.w.outcome("write", err)
}

// outcome returns the result of an operation. err is what the poller returned.
func (h *half) outcome(op string, err error) (int, error) {
	h.p = nil
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return h.n, err
	case err != nil:
		return h.n, os.ErrClosed // the only other error, which packages os and net do not export
	}
	return h.n, os.NewSyscallError(op, h.err)
}

// eof returns the error of a read of n bytes into p.
func eof(p []byte, n int, err error) error {
	if n == 0 && err == nil && len(p) > 0 {
		return io.EOF
	}
	return err
}

// again makes a system call, and repeats it while it is interrupted by a signal. n is 0 with any error.
func again(trap, fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = call(trap, fd, p); err != unix.EINTR {
			return n, err
		}
	}
}
