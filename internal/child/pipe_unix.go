//go:build unix

package child

import (
	"errors"
	"io"
	"os"
	"syscall"

	"github.com/extmesh/extmesh/internal/rawio"
)

// pipeWriter writes to a non-blocking descriptor. It is a struct so that the closures for RawConn are made only once.
type pipeWriter struct {
	rc    syscall.RawConn
	once  func(fd uintptr)
	whole func(fd uintptr) bool
	p     []byte
	n     int
	err   error
}

func (w *pipeWriter) init(f *os.File) {
	w.rc, w.err = f.SyscallConn()
	w.once = func(fd uintptr) {
		w.n, w.err = rawio.Write(fd, w.p)
	}
	w.whole = func(fd uintptr) bool {
		for w.n < len(w.p) {
			n, err := rawio.Write(fd, w.p[w.n:])
			if err != nil {
				w.err = err
				return err != syscall.EAGAIN
			}
			w.n += n
		}
		w.err = nil
		return true
	}
}

// try writes once, and returns how much was written: if the pipe is full, less than len(p) and no error. It uses Control
// instead of Write, which would check the deadline and could wait.
func (w *pipeWriter) try(p []byte) (int, error) {
	if w.rc == nil {
		return 0, w.err
	}
	w.p = p
	err := w.rc.Control(w.once)
	w.p = nil
	switch {
	case err != nil:
		return 0, os.ErrClosed // the only error of Control
	case w.err == syscall.EAGAIN:
		return 0, nil
	case w.err != nil:
		return 0, os.NewSyscallError("write", w.err)
	}
	return w.n, nil
}

// write writes all of p, and waits if the pipe is full.
func (w *pipeWriter) write(p []byte) (int, error) {
	if w.rc == nil {
		return 0, w.err
	}
	w.p, w.n, w.err = p, 0, nil
	err := w.rc.Write(w.whole)
	w.p = nil
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return w.n, err
	case err != nil:
		return w.n, os.ErrClosed // the only other error of Write, which package os does not export
	}
	return w.n, os.NewSyscallError("write", w.err)
}

// lazyReader reads from a non-blocking descriptor and has a buffer only while it tries. It makes as many system calls as
// os.File.Read. It is a struct for the same reason as pipeWriter.
type lazyReader struct {
	rc      syscall.RawConn
	fn      func(fd uintptr) bool
	buffer  func() []byte
	release func()
	n       int
	err     error
}

func (r *lazyReader) init(f *os.File) {
	r.rc, r.err = f.SyscallConn()
	r.fn = func(fd uintptr) bool {
		if r.n, r.err = rawio.Read(fd, r.buffer()); r.err != syscall.EAGAIN {
			return true
		}
		r.release()
		return false
	}
}

func (r *lazyReader) read(buffer func() []byte, release func()) (int, error) {
	if r.rc == nil {
		return 0, r.err
	}
	r.buffer, r.release = buffer, release
	err := r.rc.Read(r.fn)
	r.buffer, r.release = nil, nil
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, err
	case err != nil:
		return 0, os.ErrClosed // the only other error of Read, which package os does not export
	}
	return outcome(r.n, r.err)
}

// readNow reads from a non-blocking descriptor, once. If there is nothing to read it returns io.EOF.
func readNow(f *os.File, p []byte) (n int, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var readErr error
	if rc.Control(func(fd uintptr) { n, readErr = rawio.Read(fd, p) }) != nil {
		return 0, os.ErrClosed
	}
	if readErr == syscall.EAGAIN {
		return 0, io.EOF
	}
	return outcome(n, readErr)
}

// outcome converts the result of read(2) to that of an io.Reader.
func outcome(n int, err error) (int, error) {
	switch {
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
