//go:build unix

package child

import (
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
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
		for {
			if a.n, a.err = unix.Write(int(fd), a.p); a.err != syscall.EINTR {
				return
			}
		}
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

// readNow reads from a non-blocking descriptor, once: 0 and nil mean that there is nothing to read.
func readNow(f *os.File, p []byte) (n int, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var readErr error
	err = rc.Control(func(fd uintptr) {
		for {
			if n, readErr = unix.Read(int(fd), p); readErr != syscall.EINTR {
				return
			}
		}
	})
	switch {
	case err != nil:
		return 0, os.ErrClosed
	case readErr == syscall.EAGAIN:
		return 0, nil
	case readErr != nil:
		return 0, os.NewSyscallError("read", readErr)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
