//go:build unix

package rawio_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/rawio"
)

// pipe opens a pipe; f and its File have the same index.
func pipe(t testing.TB) (r, w *os.File, rr, rw *rawio.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	if rr, err = rawio.New(r); err != nil {
		t.Fatal(err)
	}
	if rw, err = rawio.New(w); err != nil {
		t.Fatal(err)
	}
	return r, w, rr, rw
}

// TestAttempts: TryRead and TryWrite do what is possible without waiting.
func TestAttempts(t *testing.T) {
	r, w, rr, rw := pipe(t)
	p := make([]byte, 1<<20)
	if n, err := rr.TryRead(p); n != 0 || err != nil {
		t.Errorf("an empty pipe: %d, %v", n, err)
	}
	if n, err := rw.TryWrite(nil); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
	text := bytes.Repeat([]byte("0123456789"), 100_000)
	written, err := rw.TryWrite(text)
	if err != nil || written == 0 || written == len(text) {
		t.Fatalf("more than fits: %d of %d, %v", written, len(text), err)
	}
	if n, err := rw.TryWrite(text); n != 0 || err != nil {
		t.Errorf("a full pipe: %d, %v", n, err)
	}
	n, err := rr.TryRead(p)
	if err != nil || n == 0 || !bytes.Equal(p[:n], text[:n]) {
		t.Errorf("read %d, %v", n, err)
	}
	r.Close()
	if _, err := rr.TryRead(p); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a read after Close: %v", err)
	}
	if _, err := rw.TryWrite(text); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a write without a reader: %v", err)
	}
	w.Close()
	if _, err := rw.Write(text); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a write after Close: %v", err)
	}
}

// TestWaiting: Read and Write wait for the other side, and end with a deadline or with Close.
func TestWaiting(t *testing.T) {
	r, w, rr, rw := pipe(t)
	text := bytes.Repeat([]byte("0123456789"), 100_000)
	var wg writes
	wg.write(rw, text)
	got, err := io.ReadAll(io.LimitReader(rr, int64(len(text))))
	if n, werr := wg.wait(); n != len(text) || werr != nil || err != nil || !bytes.Equal(got, text) {
		t.Fatalf("%d bytes of %d arrived, %v; the write: %d, %v", len(got), len(text), err, n, werr)
	}

	wg.write(rw, text)
	if _, err := rr.Read(make([]byte, 1)); err != nil { // the write has begun
		t.Fatal(err)
	}
	w.SetWriteDeadline(time.Now())
	if n, err := wg.wait(); n == 0 || n == len(text) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("with a deadline: %d, %v", n, err)
	}
	w.SetWriteDeadline(time.Time{})
	wg.write(rw, text)
	w.Close()
	if _, err := wg.wait(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("with Close: %v", err)
	}
	if _, err := io.Copy(io.Discard, rr); err != nil {
		t.Errorf("the end: %v", err)
	}
	r.SetReadDeadline(time.Now().Add(-time.Second))
	if _, err := rr.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read with a deadline: %v", err)
	}
}

// writes is a Write that runs on a goroutine.
type writes struct {
	done chan struct{}
	n    int
	err  error
}

func (w *writes) write(f *rawio.File, p []byte) {
	w.done = make(chan struct{})
	go func() { // ends with the write; wait waits for it
		defer close(w.done)
		w.n, w.err = f.Write(p)
	}()
}

func (w *writes) wait() (int, error) { <-w.done; return w.n, w.err }

func BenchmarkPipe(b *testing.B) {
	_, _, r, w := pipe(b)
	p := make([]byte, 256)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.TryWrite(p); err != nil {
			b.Fatal(err)
		}
		if _, err := r.Read(p); err != nil {
			b.Fatal(err)
		}
	}
}
