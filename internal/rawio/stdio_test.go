//go:build unix

package rawio_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/extmesh/extmesh/internal/rawio"
)

func isNonBlocking(t *testing.T, f *os.File) (yes bool) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		if err != nil {
			t.Error(err)
		}
		yes = flags&unix.O_NONBLOCK != 0
	}); err != nil {
		t.Fatal(err)
	}
	return yes
}

// blockingPipe is a pipe as a child process inherits it.
func blockingPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe(fds[:]); err != nil {
		t.Fatal(err)
	}
	r, w = os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestStdio(t *testing.T) {
	stdin, toStdin := blockingPipe(t)
	fromStdout, stdout := blockingPipe(t)
	in, out, restore := rawio.Stdio(stdin, stdout)
	if !isNonBlocking(t, stdin) || !isNonBlocking(t, stdout) {
		t.Error("the pipes are blocking")
	}
	got := make([]byte, 5)
	for _, one := range []struct {
		r io.Reader
		w io.Writer
	}{{in, toStdin}, {fromStdout, out}} {
		if _, err := io.WriteString(one.w, "hello"); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(one.r, got); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	}
	ended := make(chan error, 1)
	go func() { // ends with restore
		_, err := in.Read(got)
		ended <- err
	}()
	restore()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("a Read during restore: %v", err)
	}
	if isNonBlocking(t, stdin) || isNonBlocking(t, stdout) {
		t.Error("the pipes are not blocking again")
	}
}

// TestStdioStays: what is not a pipe, or also standard error, is returned as it is.
func TestStdioStays(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	_, both := blockingPipe(t)
	stderr := os.Stderr
	os.Stderr = both
	defer func() { os.Stderr = stderr }()
	in, out, restore := rawio.Stdio(file, both)
	defer restore()
	if in != io.Reader(file) || out != io.Writer(both) || isNonBlocking(t, both) {
		t.Errorf("%v, %v", in, out)
	}
}
