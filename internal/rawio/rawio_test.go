//go:build unix

package rawio_test

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/extmesh/extmesh/internal/rawio"
)

// ends opens a pipe and calls f with the descriptors of its two ends.
func ends(t testing.TB, f func(r, w uintptr)) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	rr, err := r.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	rw, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	rr.Control(func(rfd uintptr) { rw.Control(func(wfd uintptr) { f(rfd, wfd) }) })
}

func TestReadWrite(t *testing.T) {
	ends(t, func(r, w uintptr) {
		p := make([]byte, 1<<20)
		if n, err := rawio.Read(r, p); n != 0 || err != syscall.EAGAIN {
			t.Errorf("an empty pipe: %d, %v", n, err)
		}
		if n, err := rawio.Write(w, nil); n != 0 || err != nil {
			t.Errorf("nothing: %d, %v", n, err)
		}
		text := bytes.Repeat([]byte("0123456789"), 100_000)
		written, err := rawio.Write(w, text)
		if err != nil || written == 0 || written == len(text) {
			t.Fatalf("more than fits: %d of %d, %v", written, len(text), err)
		}
		if n, err := rawio.Write(w, text); n != 0 || err != syscall.EAGAIN {
			t.Errorf("a full pipe: %d, %v", n, err)
		}
		n, err := rawio.Read(r, p)
		if err != nil || n == 0 || !bytes.Equal(p[:n], text[:n]) {
			t.Errorf("read %d, %v", n, err)
		}
		if _, err := rawio.Read(1<<20, p); !errors.Is(err, syscall.EBADF) {
			t.Errorf("no descriptor: %v", err)
		}
	})
}

func BenchmarkPipe(b *testing.B) {
	ends(b, func(r, w uintptr) {
		p := make([]byte, 256)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := rawio.Write(w, p); err != nil {
				b.Fatal(err)
			}
			if _, err := rawio.Read(r, p); err != nil {
				b.Fatal(err)
			}
		}
	})
}
