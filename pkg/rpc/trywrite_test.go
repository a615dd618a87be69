//go:build unix

package rpc

import (
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
