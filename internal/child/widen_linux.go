package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// pipeSize is the capacity of a pipe to or from a child, for many concurrent calls. With the system's 64 KiB, two
// processes on two cores spend most of their time waking each other.
const pipeSize = 256 << 10

// widen makes a pipe larger.
func widen(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
}
