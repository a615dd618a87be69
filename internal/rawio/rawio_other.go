//go:build unix && (!linux || race)

package rawio

import "golang.org/x/sys/unix"

// Read is read(2).
func Read(fd uintptr, p []byte) (n int, err error) {
	return again(func() (int, error) { return unix.Read(int(fd), p) })
}

// Write is write(2).
func Write(fd uintptr, p []byte) (n int, err error) {
	return again(func() (int, error) { return unix.Write(int(fd), p) })
}

func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		switch err {
		case nil:
			return n, nil
		case unix.EINTR:
		default:
			return 0, err
		}
	}
}
