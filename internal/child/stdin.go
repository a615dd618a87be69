package child

import (
	"errors"
	"os"
	"sync"
	"time"
)

// Stdin is the writing end of a process's standard input.
type Stdin struct {
	f *os.File

	mu   sync.Mutex // one writer at a time
	w    pipeWriter
	torn bool // the last byte written was not the end of a line
}

func newStdin(f *os.File) *Stdin {
	s := &Stdin{f: f}
	s.w.init(f)
	return s
}

// Write writes all of p, waiting for a process that does not read until the write deadline passes
// (os.ErrDeadlineExceeded; part of p may have been written). To a process that is gone it fails with EPIPE
// or os.ErrClosed.
func (s *Stdin) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.w.write(p)
	s.note(p[:n])
	return n, err
}

// TryWrite writes as much of p as the pipe takes right now, in one attempt that never waits, and returns how
// much that was: n < len(p) with a nil error means the pipe is full, or another write is under way. The
// write deadline does not concern it. On Windows it never writes: n is 0.
func (s *Stdin) TryWrite(p []byte) (int, error) {
	if !s.mu.TryLock() {
		return 0, nil
	}
	defer s.mu.Unlock()
	n, err := s.w.try(p)
	s.note(p[:n])
	return n, err
}

func (s *Stdin) note(written []byte) {
	if n := len(written); n > 0 {
		s.torn = written[n-1] != '\n'
	}
}

// SetWriteDeadline bounds present and future Writes. On Windows it fails with os.ErrNoDeadline.
func (s *Stdin) SetWriteDeadline(t time.Time) error { return s.f.SetWriteDeadline(t) }

// Close closes the pipe: the process reads the end of its input. A Write under way fails. Closing twice is
// no error.
func (s *Stdin) Close() error {
	if err := s.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// farewell lets say write its last words, after a Write that is still under way has been cut off.
func (s *Stdin) farewell(say func(*Stdin)) {
	s.SetWriteDeadline(time.Now())
	s.mu.Lock()
	s.SetWriteDeadline(time.Now().Add(farewellWait))
	if s.torn {
		s.w.write([]byte{'\n'})
	}
	s.mu.Unlock()
	say(s)
}
