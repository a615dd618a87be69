//go:build linux

package child_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/child"
)

// lazyReader is also implemented by Process.Stdout.
type lazyReader interface {
	ReadLazy(buffer func() []byte, release func()) (int, error)
}

// lazily reads with ReadLazy, and checks its use of buffers.
type lazily struct {
	t *testing.T
	lazyReader
	held bool
}

func (l *lazily) Read(p []byte) (int, error) {
	n, err := l.ReadLazy(func() []byte {
		l.held = true
		return p
	}, func() {
		if !l.held {
			l.t.Error("released what it does not have")
		}
		l.held = false
	})
	if n > 0 && !l.held {
		l.t.Errorf("read %d bytes without a buffer", n)
	}
	return n, err
}

// bothWays runs a test with both ways to read.
func bothWays(t *testing.T, test func(t *testing.T, stdout func(*child.Process) io.Reader)) {
	t.Run("Read", func(t *testing.T) {
		test(t, func(p *child.Process) io.Reader { return p.Stdout })
	})
	t.Run("ReadLazy", func(t *testing.T) {
		test(t, func(p *child.Process) io.Reader { return &lazily{t: t, lazyReader: p.Stdout.(lazyReader)} })
	})
}

// While there is nothing to read, no buffer is in use.
func TestReadLazyWaitsWithoutABuffer(t *testing.T) {
	noSurvivors(t)
	err := run(t, t.Context(), spec("echo"), func(ctx context.Context, p *child.Process) error {
		var steps []string
		buf := make([]byte, 100)
		n, err := p.Stdout.(lazyReader).ReadLazy(func() []byte {
			steps = append(steps, "buffer")
			return buf
		}, func() {
			if steps = append(steps, "release"); len(steps) == 2 {
				p.Stdin.Write([]byte("hello\n"))
			}
		})
		if string(buf[:n]) != "hello\n" || err != nil {
			t.Errorf("read %q, %v", buf[:n], err)
		}
		// After a wake-up without data it must call release again.
		if s := strings.Join(steps, " "); strings.ReplaceAll(s, "buffer release ", "") != "buffer" || len(steps) < 3 {
			t.Errorf("calls: %s", s)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestReadLazyAllocatesNothing(t *testing.T) {
	noSurvivors(t)
	run(t, t.Context(), spec("echo"), func(ctx context.Context, p *child.Process) error {
		stdout, line, buf := p.Stdout.(lazyReader), []byte("x\n"), make([]byte, 100)
		buffer, release := func() []byte { return buf }, func() {}
		n := testing.AllocsPerRun(100, func() {
			p.Stdin.TryWrite(line)
			stdout.ReadLazy(buffer, release)
		})
		if n > 0 {
			t.Errorf("%v allocations", n)
		}
		return nil
	})
}
