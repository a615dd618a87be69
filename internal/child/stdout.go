package child

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// maxPipe is the most that a pipe holds without privileges (Linux: fs.pipe-max-size).
const maxPipe = 1 << 20

// outlet is the reading end of a process's output. While the process lives it is the pipe and nothing
// else. After that it delivers what is in the pipe and what follows without a pause of more than quiet, so
// that one who holds the pipe open cannot hide the end; and when all descendants are dead, no more than a
// pipe can hold.
type outlet struct {
	f    *os.File
	lazy lazyReader
	told <-chan struct{} // if set, an EOF waits for it a little: then the reason is known

	mu    sync.Mutex
	ended bool
	left  int // after cutOff: bytes still to be delivered; -1: no limit
}

func newOutlet(f *os.File, told <-chan struct{}) *outlet {
	o := &outlet{f: f, told: told, left: -1}
	o.lazy.init(f)
	return o
}

func (o *outlet) Read(p []byte) (int, error) {
	n, err := o.f.Read(p)
	if o.late(n, err) {
		n, err = readNow(o.f, p)
	}
	return o.result(n, err)
}

// ReadLazy is Read without a buffer in hand while it waits; Process.Stdout describes it.
func (o *outlet) ReadLazy(buffer func() []byte, release func()) (int, error) {
	n, err := o.lazy.read(buffer, release)
	if o.late(n, err) {
		n, err = readNow(o.f, buffer())
	}
	return o.result(n, err)
}

// late reports whether a read failed by the deadline that end has set. It may have passed while nobody was
// reading: what lies in the pipe still counts.
func (o *outlet) late(n int, err error) bool {
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && o.isEnded()
}

// result is what a reader is told of an attempt.
func (o *outlet) result(n int, err error) (int, error) {
	if n > 0 {
		return o.more(n)
	}
	if err == io.EOF && o.told != nil {
		t := time.NewTimer(eofWait)
		defer t.Stop()
		select {
		case <-o.told:
		case <-t.C:
		}
	}
	return 0, err
}

// more accounts for n bytes that were read.
func (o *outlet) more(n int) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		return n, nil
	}
	if o.left >= 0 {
		if o.left -= n; o.left < 0 {
			return 0, io.EOF
		}
	}
	o.f.SetReadDeadline(time.Now().Add(quiet))
	return n, nil
}

func (o *outlet) isEnded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

// wakeAt makes Read fail with os.ErrDeadlineExceeded at t, while the process lives; zero: never.
func (o *outlet) wakeAt(t time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.f.SetReadDeadline(t)
	}
}

// end says that the process is gone: from now on silence is the end.
func (o *outlet) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.f.SetReadDeadline(time.Now().Add(quiet))
}

// cutOff says that all descendants are dead too: whoever still writes is none of ours.
func (o *outlet) cutOff() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left = maxPipe
}
