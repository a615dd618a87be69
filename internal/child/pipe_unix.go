//go:build unix

package child

import (
	"errors"
	"io"
	"os"
	"syscall"

	"github.com/extmesh/extmesh/internal/rawio"
)

// attempt is one write to a non-blocking descriptor, over and over again. It goes through Control and not
// through Write, which would look at the deadline and could wait, and it is a struct so that the closure
// Control wants is made once.
type attempt struct {
	rc  syscall.RawConn
	fn  func(fd uintptr)
	p   []byte
	n   int
	err error
}

func (a *attempt) init(f *os.File) {
	a.rc, a.err = f.SyscallConn()
	a.fn = func(fd uintptr) {
		a.n, a.err = rawio.Write(fd, a.p)
	}
}

// write returns how much was taken: less than all of p, and no error, if the pipe is full.
func (a *attempt) write(p []byte) (int, error) {
	if a.rc == nil {
		return 0, a.err
	}
	a.p = p
	err := a.rc.Control(a.fn)
	a.p = nil
	switch {
	case err != nil:
		return 0, os.ErrClosed // the one way Control fails
	case a.err == syscall.EAGAIN:
		return 0, nil
	case a.err != nil:
		return 0, os.NewSyscallError("write", a.err)
	}
	return a.n, nil
}

// lazyReader reads from a non-blocking descriptor and has a buffer only when it tries. It makes one system
// call where os.File.Read makes one, and is a struct for the reason that attempt is.
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
		return 0, os.ErrClosed // the one other way Read fails: its own word for it is not exported
	}
	return outcome(r.n, r.err)
}

// readNow reads from a non-blocking descriptor, once. That there is nothing to read is its end.
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

// outcome is what read(2) means to an io.Reader.
func outcome(n int, err error) (int, error) {
	switch {
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
