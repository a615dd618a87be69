//go:build linux && !race

package rawio

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read is read(2). n is 0 with any error, which is a syscall.Errno; EINTR is retried.
func Read(fd uintptr, p []byte) (n int, err error) { return call(unix.SYS_READ, fd, p) }

// Write is write(2), with EINTR retried. It may write less than p.
func Write(fd uintptr, p []byte) (n int, err error) { return call(unix.SYS_WRITE, fd, p) }

func call(trap, fd uintptr, p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
