//go:build linux && !race

package rawio

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func call(trap, fd uintptr, p []byte) (int, error) {
	n, _, errno := unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
