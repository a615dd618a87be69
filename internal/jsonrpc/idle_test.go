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

// TestIdleConn checks what an idle Conn keeps after small and after large messages: only its reader's goroutine, and no
// buffer for writing.
func TestIdleConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := NewConn(here, here, Options{})
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
			if c.out.writing || c.out.out != nil {
				t.Errorf("after %d bytes: writing %v, batch %v", size, c.out.writing, c.out.out)
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
		if n := len(c.pending.of); n > 0 {
			t.Errorf("an idle connection keeps a table of %d", n)
		}
	})
}

func goroutines() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// TestLineBuffers checks the buffers that a LineReader reads into.
func TestLineBuffers(t *testing.T) {
	const line = "0123456789\n"
	large := strings.Repeat("x", 50_000) + "\n"
	for _, tt := range []struct {
		name string
		come []string
		want []int // the buffer at each read
	}{
		{"small", []string{line, line}, []int{smallBuffer, smallBuffer, smallBuffer}},
		{"an answer to initialize", []string{large[40_000:], line, line}, []int{smallBuffer, lineBuffer, lineBuffer, smallBuffer, smallBuffer}},
		{"a line and part of one", []string{line + line[:5], line[5:], line}, []int{smallBuffer, smallBuffer, smallBuffer, smallBuffer}},
		{"large", []string{large, line, line}, []int{smallBuffer, lineBuffer, readBuffer, readBuffer, smallBuffer, smallBuffer}},
		{"over the limit", []string{strings.Repeat("x", 250_000) + "\n", line, line},
			[]int{smallBuffer, lineBuffer, readBuffer, keepBuffer, keepBuffer, smallBuffer, smallBuffer}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &arrivals{pieces: tt.come}
			l := NewLineReader(r, 200_000)
			r.lines = l
			var err error
			for long := (*LongLineError)(nil); err == nil || errors.As(err, &long); {
				_, err = l.Next()
			}
			if err != io.EOF || fmt.Sprint(r.held) != fmt.Sprint(tt.want) {
				t.Errorf("%v; buffers: %v, want %v", err, r.held, tt.want)
			}
		})
	}
}

// arrivals reads one of its texts at a time.
type arrivals struct {
	pieces
	lines *LineReader
	held  []int
}

func (c *arrivals) Read(p []byte) (int, error) {
	c.held = append(c.held, cap(c.lines.buf))
	return c.pieces.Read(p)
}

// TestReaderShrinks checks that a large line's buffer is released at the first small line after it.
func TestReaderShrinks(t *testing.T) {
	for _, size := range []int{10_000, 100_000, 1_000_000} {
		r := &pieces{strings.Repeat("x", size) + "\n", "small\n", "small\n"}
		l := NewLineReader(r, 0)
		for range 2 {
			if _, err := l.Next(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := l.Next(); err != nil || cap(l.buf) != smallBuffer {
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

// wrongCount is a reader that returns a larger count than there was room for.
type wrongCount struct{}

func (wrongCount) Read(p []byte) (int, error) { return len(p) + 1, nil }

func TestReadCountTooLarge(t *testing.T) {
	if line, err := NewLineReader(wrongCount{}, 0).Next(); err == nil || err == io.EOF {
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
			if c.out.writing && c.out.werr == nil {
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
