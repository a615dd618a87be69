package jsonrpc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// lazyConn is a net.Conn with ReadLazy.
type lazyConn struct{ net.Conn }

// ReadLazy waits each time, by reading into a byte of its own.
func (l lazyConn) ReadLazy(buffer func() []byte, release func()) (int, error) {
	buffer()
	release()
	var first [1]byte
	n, err := l.Conn.Read(first[:])
	if n == 0 || err != nil {
		return 0, err
	}
	p := buffer()
	p[0] = first[0]
	if len(p) == 1 {
		return 1, nil
	}
	more, err := l.Conn.Read(p[1:])
	return 1 + more, err
}

// TestIdleConn checks what an idle Conn keeps after small and after large messages: only its reader's goroutine, and no
// buffers.
func TestIdleConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := NewConn(lazyConn{here}, here, Options{})
		var wg sync.WaitGroup
		wg.Go(func() { c.Run(t.Context()) })
		wg.Go(func() { echo(there, there) }) // ends when there is closed
		for _, size := range []int{10, 10_000, 100_000, 1_000_000, 10} {
			for range 3 {
				want := `"` + strings.Repeat("x", size) + `"`
				if got, err := c.Call(t.Context(), "echo", json.RawMessage(want)); err != nil || string(got) != want {
					t.Fatalf("%d bytes: %.20s, %v", size, got, err)
				}
			}
			synctest.Wait()
			if stacks := goroutines(); strings.Contains(stacks, "(*Conn).drain") {
				t.Errorf("after %d bytes a goroutine still writes:\n%s", size, stacks)
			}
			c.mu.Lock()
			if c.writing || c.out != nil {
				t.Errorf("after %d bytes: writing %v, batch %v", size, c.writing, c.out)
			}
			c.mu.Unlock()
		}
		there.Close()
		wg.Wait()
	})
}

// TestPendingTableShrinks checks that the table of pending exchanges is released when their last deadline has passed.
func TestPendingTableShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, Options{}, func(in *bufio.Reader, out io.Writer) { echo(in, out) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 2 {
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					if _, err := c.Call(ctx, "m", nil); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.pending.slots); n > 0 {
			t.Errorf("an idle connection keeps a table of %d", n)
		}
	})
}

func goroutines() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// TestLineBuffers checks the buffer that a lineReader has while it waits.
func TestLineBuffers(t *testing.T) {
	const line = "0123456789\n"
	large := strings.Repeat("x", 50_000) + "\n"
	for _, tt := range []struct {
		name string
		come []string
		want []int // the buffer at each wait
	}{
		{"small", []string{line, line}, []int{0, 0, 0}},
		{"large", []string{large, line}, []int{0, 0, 0}},
		{"part of a line", []string{line[:5], line[5:]}, []int{0, readBuffer, 0}},
		{"a line and part of one", []string{line + line[:5], line[5:], line}, []int{0, readBuffer, 0, 0}},
		{"larger", []string{large[:49_000], large[:49_000], large, line}, []int{0, readBuffer, keepBuffer, 0, 0}},
		{"over the limit", []string{large[:50_000], large[:50_000], large[:50_000], large[:50_000], large[:50_000], large, line},
			[]int{0, readBuffer, keepBuffer, keepBuffer, keepBuffer, 0, 0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &arrivals{come: tt.come}
			l := newLineReader(r, 200_000)
			r.lines = l
			var err error
			for long := (*LongLineError)(nil); err == nil || errors.As(err, &long); {
				_, err = l.next()
			}
			if err != io.EOF || fmt.Sprint(r.held) != fmt.Sprint(tt.want) {
				t.Errorf("%v; buffers at the waits: %v, want %v", err, r.held, tt.want)
			}
		})
	}
}

// arrivals is a lazy reader that waits before each of its texts.
type arrivals struct {
	come  []string
	begun bool // the first text has been read from
	lines *lineReader
	held  []int
}

func (c *arrivals) Read([]byte) (int, error) { panic("Read was called instead of ReadLazy") }

func (c *arrivals) ReadLazy(buffer func() []byte, release func()) (int, error) {
	p := buffer()
	if !c.begun {
		release()
		c.held = append(c.held, cap(c.lines.buf))
		p = buffer()
	}
	if len(c.come) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.come[0])
	c.come[0] = c.come[0][n:]
	if c.begun = c.come[0] != ""; !c.begun {
		c.come = c.come[1:]
	}
	return n, nil
}

// TestPlainReaderShrinks checks that over a reader that does not report when it waits, a large line's buffer is released
// at the first small line after it.
func TestPlainReaderShrinks(t *testing.T) {
	for _, size := range []int{10_000, 100_000, 1_000_000} {
		r := &pieces{strings.Repeat("x", size) + "\n", "small\n", "small\n"}
		l := newLineReader(r, 0)
		for range 2 {
			if _, err := l.next(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := l.next(); err != nil || cap(l.buf) != smallBuffer {
			t.Errorf("%d bytes after a line of %d, %v", cap(l.buf), size, err)
		}
	}
}

// pieces reads one of its texts at a time.
type pieces []string

func (p *pieces) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	if (*p)[0] = (*p)[0][n:]; (*p)[0] == "" {
		*p = (*p)[1:]
	}
	return n, nil
}

// wrongCount is a lazy reader that returns a larger count than there was room for.
type wrongCount struct{ io.Reader }

func (wrongCount) ReadLazy(buffer func() []byte, release func()) (int, error) {
	n := len(buffer())
	release()
	return n, nil
}

func TestReadCountTooLarge(t *testing.T) {
	if line, err := newLineReader(wrongCount{}, 0).next(); err == nil || err == io.EOF {
		t.Errorf("= %q, %v", line, err)
	}
}

// TestEndWithManyWriters ends connections at random moments while many goroutines write: Run waits for the writing one.
func TestEndWithManyWriters(t *testing.T) {
	defer leaks.None(t, goleak.IgnoreCurrent())
	for round := range 50 {
		here, there := net.Pipe()
		c := NewConn(here, here, Options{Handler: rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
			return r.Params, nil
		})})
		var writers, run sync.WaitGroup
		for i := range 8 {
			writers.Go(func() {
				for {
					if _, err := c.Call(t.Context(), "m", nil); err != nil {
						return
					}
					if i%2 == 0 && c.Notify("n", nil) != nil {
						return
					}
				}
			})
		}
		run.Go(func() {
			if err := c.Run(t.Context()); err != nil && !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("Run: %v", err)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.writing && c.werr == nil {
				t.Error("a goroutine writes after Run has returned")
			}
		})
		in := bufio.NewReader(there)
		for range round {
			line, err := in.ReadBytes('\n')
			if err != nil {
				t.Fatal(err)
			}
			if e, _ := Scan(line); e.ID != nil {
				fmt.Fprintf(there, `{"jsonrpc":"2.0","id":%s,"result":1}`+"\n", e.ID)
				fmt.Fprintf(there, `{"jsonrpc":"2.0","id":"%d","method":"m"}`+"\n", round)
			}
		}
		there.Close()
		run.Wait()
		writers.Wait()
		here.Close()
	}
}
