package child

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/rawio"
)

// Stdin is the writing end of a process's standard input.
type Stdin struct {
	f   *os.File
	raw *rawio.File

	mu   sync.Mutex // one writer at a time
	torn bool       // the last byte written was not the end of a line
}

// Write writes all of p. If the process does not read, it waits until the write deadline passes (os.ErrDeadlineExceeded;
// part of p may have been written). If the process has exited it fails with EPIPE or os.ErrClosed.
func (s *Stdin) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.raw.Write(p)
	s.note(p[:n])
	return n, err
}

// TryWrite writes as much of p as fits into the pipe, in one attempt that never waits, and returns how much that was:
// n < len(p) with a nil error means that the pipe is full, or that another write is in progress. The write deadline does
// not apply. On Windows it never writes: n is 0.
func (s *Stdin) TryWrite(p []byte) (int, error) {
	if !s.mu.TryLock() {
		return 0, nil
	}
	defer s.mu.Unlock()
	n, err := s.raw.TryWrite(p)
	s.note(p[:n])
	return n, err
}

func (s *Stdin) note(written []byte) {
	if n := len(written); n > 0 {
		s.torn = written[n-1] != '\n'
	}
}

// SetWriteDeadline limits the time of current and future Writes. On Windows it fails with os.ErrNoDeadline.
func (s *Stdin) SetWriteDeadline(t time.Time) error { return s.f.SetWriteDeadline(t) }

// Close closes the pipe: the process reads EOF. A Write in progress fails. Closing twice is not an error.
func (s *Stdin) Close() error {
	if err := s.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// beforeStop interrupts a Write in progress and then calls f, which may write a final message.
func (s *Stdin) beforeStop(f func(*Stdin)) {
	s.SetWriteDeadline(time.Now())
	s.mu.Lock()
	s.SetWriteDeadline(time.Now().Add(beforeStopWait))
	if s.torn {
		s.raw.Write([]byte{'\n'})
	}
	s.mu.Unlock()
	f(s)
}
