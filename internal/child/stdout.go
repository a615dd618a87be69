package child

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/rawio"
)

// maxPipe is the largest capacity of a pipe without privileges (Linux: fs.pipe-max-size).
const maxPipe = 1 << 20

// outputPipe is the reading end of a process's stdout or stderr. While the process runs it only reads the pipe. After the
// process has exited it delivers what is in the pipe and what follows without a pause of more than quiet, so that a
// process that keeps the pipe open cannot hide the end. After all descendants have exited it delivers at most the
// capacity of a pipe.
type outputPipe struct {
	f        *os.File
	raw      *rawio.File
	finished <-chan struct{} // if set, an EOF is delayed a little until it is closed: then the reason is available
	exited   func() bool     // set with finished: reads from the system whether the process has exited, which may be before end is called
	drained  chan struct{}   // closed before such an EOF
	once     sync.Once       // for drained

	mu    sync.Mutex
	ended bool
	left  int // after cutOff: bytes still to be delivered; -1: no limit
}

func newOutputPipe(f *os.File, raw *rawio.File, finished <-chan struct{}) *outputPipe {
	o := &outputPipe{f: f, raw: raw, finished: finished, left: -1}
	if finished != nil {
		o.drained = make(chan struct{})
	}
	return o
}

func (o *outputPipe) Read(p []byte) (int, error) {
	n, err := o.raw.Read(p)
	if o.late(n, err) {
		if n, err = o.raw.TryRead(p); n == 0 && err == nil {
			err = io.EOF
		}
	}
	return o.result(n, err)
}

// late reports whether a read failed because of the deadline that end has set. The deadline may have passed before the
// reader called Read, so data in the pipe still counts.
func (o *outputPipe) late(n int, err error) bool {
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && o.isEnded()
}

// result returns the results of Read for an attempt.
func (o *outputPipe) result(n int, err error) (int, error) {
	if n > 0 {
		return o.more(n)
	}
	if err == io.EOF && o.finished != nil {
		o.once.Do(func() { close(o.drained) })
		t := time.NewTimer(eofWait)
		defer t.Stop()
		select {
		case <-o.finished:
		case <-t.C:
			if o.isEnded() || o.exited() { // the reason follows, after tailWait at most
				<-o.finished
			}
		}
	}
	return 0, err
}

// more updates the limit and the deadline after n bytes were read.
func (o *outputPipe) more(n int) (int, error) {
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

func (o *outputPipe) isEnded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

// wakeAt makes Read fail with os.ErrDeadlineExceeded at t, while the process runs; zero: never.
func (o *outputPipe) wakeAt(t time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.f.SetReadDeadline(t)
	}
}

// end is called when the process has exited: from then on the output ends after a pause.
func (o *outputPipe) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.f.SetReadDeadline(time.Now().Add(quiet))
}

// cutOff is called when all descendants have exited too: further output comes from an unrelated process.
func (o *outputPipe) cutOff() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left = maxPipe
}
