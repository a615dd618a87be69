//go:build unix

package rawio

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Stdio returns standard input and output. Those that are pipes or sockets, as a client's are, become non-blocking and are
// read and written without notifying Go's scheduler, until restore, after which a Read or Write fails. A terminal and a file
// stay as they are, and so does what is also standard error: a log line that does not fit into a non-blocking pipe is lost.
func Stdio(stdin, stdout *os.File) (in io.Reader, out io.Writer, restore func()) {
	r, restoreIn := unblocked(stdin)
	w, restoreOut := unblocked(stdout)
	in, out = stdin, stdout
	if r != nil {
		in = r
	}
	if w != nil {
		out = w
	}
	return in, out, func() { restoreIn(); restoreOut() }
}

// unblocked returns a File for the pipe or socket f, or nil.
func unblocked(f *os.File) (_ *File, restore func()) {
	nothing := func() {}
	info, err := f.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return nil, nothing
	}
	if other, err := os.Stderr.Stat(); err != nil || os.SameFile(info, other) {
		return nil, nothing
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, nothing
	}
	flags, own := 0, -1 // a descriptor of its own, which the poller accepts because it is non-blocking
	if raw.Control(func(fd uintptr) {
		if flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil {
			return
		}
		if own, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			err = unix.SetNonblock(own, true)
		}
	}) != nil || own < 0 {
		return nil, nothing
	}
	dup := os.NewFile(uintptr(own), f.Name())
	restore = func() {
		_ = unix.SetNonblock(own, flags&unix.O_NONBLOCK != 0)
		_ = dup.Close()
	}
	file, newErr := New(dup)
	if err != nil || newErr != nil {
		restore()
		return nil, nothing
	}
	return file, restore
}
