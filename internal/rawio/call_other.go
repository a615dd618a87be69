//go:build unix && (!linux || race)

package rawio

import "golang.org/x/sys/unix"

func call(trap, fd uintptr, p []byte) (int, error) {
	do := unix.Write
	if trap == unix.SYS_READ {
		do = unix.Read
	}
	n, err := do(int(fd), p)
	return max(n, 0), err
}
