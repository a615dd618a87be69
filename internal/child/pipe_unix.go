//go:build unix

package child

import (
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// writeNow writes to a non-blocking descriptor, once. It goes through Control and not through Write, which
// would look at the deadline and could wait.
func writeNow(f *os.File, p []byte) (int, error) {
	return ioNow(f, func(fd int) (int, error) { return unix.Write(fd, p) })
}

// readNow reads from a non-blocking descriptor, once: 0 and nil mean that there is nothing to read.
func readNow(f *os.File, p []byte) (int, error) {
	eof := false
	n, err := ioNow(f, func(fd int) (int, error) {
		n, err := unix.Read(fd, p)
		eof = n == 0 && err == nil
		return n, err
	})
	if eof {
		err = io.EOF
	}
	return n, err
}

func ioNow(f *os.File, op func(fd int) (int, error)) (n int, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var opErr error
	err = rc.Control(func(fd uintptr) {
		for {
			if n, opErr = op(int(fd)); opErr != syscall.EINTR {
				return
			}
		}
	})
	switch {
	case err != nil:
		return 0, os.ErrClosed // the one way Control fails
	case opErr == syscall.EAGAIN:
		return 0, nil
	case opErr != nil:
		return 0, opErr
	}
	return n, nil
}
