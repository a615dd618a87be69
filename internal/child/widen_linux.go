package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// pipeSize is what a pipe to or from a child holds: a crowd's calls at once. With the system's 64 KiB two
// processes on two cores spend their time waking each other up.
const pipeSize = 256 << 10

// widen makes a pipe larger. Where the user has too many large pipes already it stays as it was.
func widen(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
}
