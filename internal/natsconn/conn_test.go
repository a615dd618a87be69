package natsconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// tape is a connection that records each write.
type tape struct {
	net.Conn
	writes []string
}

func (t *tape) Write(p []byte) (int, error) {
	t.writes = append(t.writes, string(p))
	return len(p), nil
}
func (t *tape) Read([]byte) (int, error)         { return 1, nil }
func (t *tape) SetWriteDeadline(time.Time) error { return nil }

// TestConnBuffers runs sequences of events: a letter is a message, "<" is a read, "|" lets flushSoon run.
func TestConnBuffers(t *testing.T) {
	large := strings.Repeat("L", maxCopied+1)
	again := func(s string, n int) string { return strings.Repeat(s, n) }
	for _, tt := range []struct{ name, play, want string }{
		{"alternating", "a<b<c<d", "a b c d"},
		{"nothing to write", "a<|b<|", "a b"},
		{"two messages without a reply", "ab<|", "a b"},
		{"a batch", "abcd|<efg|", "a bcd efg"},
		{"batching continues for a while", "abc|<d|<e|<fg|", "a bc d e fg"},
		{"batching ends after maxSingles single messages", "ab|" + again("<s|", maxSingles-1) + "<c<d", "a b" + again(" s", maxSingles-1) + " c d"},
		{"a batch restarts the count", "ab|" + again("<s|", maxSingles-2) + "<cd|" + again("<s|", maxSingles-1) + "<ef|", "a b" + again(" s", maxSingles-2) + " cd" + again(" s", maxSingles-1) + " ef"},
		{"batching again", "ab|" + again("<s|", maxSingles-1) + "<cd|<e|", "a b" + again(" s", maxSingles-1) + " c d e"},
		{"a large message is not buffered", "abcLd|", "a bc " + large + " d"},
		{"single large messages", "L<L", large + " " + large},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tape := &tape{}
			c := newConn(tape, 0)
			var turn func()
			c.spawn = func(f func()) {
				if turn != nil {
					t.Error("two writers at once")
				}
				turn = f
			}
			for _, r := range tt.play {
				switch r {
				case '<':
					c.Read(nil)
				case '|':
					if f := turn; f != nil {
						turn = nil
						f()
					}
				case 'L':
					c.Write([]byte(large))
				default:
					c.Write([]byte(string(r)))
				}
			}
			if got := strings.Join(tape.writes, " "); got != tt.want {
				t.Errorf("written: %.200s\nwant:    %.200s", got, tt.want)
			}
		})
	}
}

// TestConnBounds: at most maxBuffered bytes are buffered, regardless of the writer.
func TestConnBounds(t *testing.T) {
	tape := &tape{}
	c := newConn(tape, 0)
	c.spawn = func(func()) {}
	message := bytes.Repeat([]byte("m"), maxCopied-1)
	for range 100 {
		c.Write(message)
		if len(c.buffered) > maxBuffered {
			t.Fatalf("%d bytes are buffered", len(c.buffered))
		}
	}
	c.flushSoon()
	if n := len(strings.Join(tape.writes, "")); n != 100*len(message) || len(tape.writes) > 27 {
		t.Errorf("%d bytes were written, in %d writes", n, len(tape.writes))
	}
}

// TestConnWhole: messages of concurrent writers arrive complete, and those of each writer in order.
func TestConnWhole(t *testing.T) {
	near, far := net.Pipe()
	c := newConn(near, time.Minute)
	const writers, messages = 8, 500
	go func() { // ends with its last message, which the loop below reads
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range messages {
					size := 1
					if i%100 == w {
						size = maxCopied
					}
					fmt.Fprintf(c, "%d %d %s\n", w, i, strings.Repeat("x", size))
				}
			})
		}
		wg.Wait()
		c.Write(nil) // writes what is buffered; Close would wait a second at most
		c.Close()
	}()
	text, err := io.ReadAll(far)
	if err != nil {
		t.Fatal(err)
	}
	var next [writers]int
	for line := range strings.Lines(string(text)) {
		var w, i int
		var x string
		if n, err := fmt.Sscanf(line, "%d %d %s\n", &w, &i, &x); n != 3 || err != nil || i != next[w] || strings.Trim(x, "x") != "" {
			t.Fatalf("%.100q after %v: %v", line, next, err)
		}
		next[w]++
	}
	if slices.Min(next[:]) != messages {
		t.Errorf("arrived: %v of %d each", next, messages)
	}
}

// TestConnClose: buffered messages are written first, and a server that does not read delays Close only briefly.
func TestConnClose(t *testing.T) {
	t.Run("buffered messages", func(t *testing.T) {
		near, far := net.Pipe()
		c := newConn(near, 0)
		c.spawn = func(func()) {}
		got := make(chan string, 1)
		go func() { b, _ := io.ReadAll(far); got <- string(b) }() // ends with Close
		c.Write([]byte("a"))
		c.Write([]byte("b"))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if s := <-got; s != "ab" {
			t.Errorf("arrived: %q", s)
		}
		if n, err := c.Write([]byte("c")); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("after that: %d, %v", n, err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("again: %v", err)
		}
	})
	t.Run("server does not read", func(t *testing.T) { // no bubble: its clock stops while a goroutine waits for a mutex
		near, far := net.Pipe()
		defer far.Close()
		blocked := make(chan struct{})
		c := newConn(signal{near, blocked}, time.Hour)
		go c.Write([]byte("waits")) // ends with Close
		<-blocked
		began := time.Now()
		c.Close()
		if took := time.Since(began); took < closeTimeout {
			t.Errorf("closing took %s", took)
		}
	})
}

// signal is a connection that signals each write.
type signal struct {
	net.Conn
	writing chan struct{}
}

func (s signal) Write(p []byte) (int, error) {
	close(s.writing)
	return s.Conn.Write(p)
}

// TestConnFails: a write that fails or times out ends the connection for the reader; the writer gets no error.
func TestConnFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit time.Duration
		set   time.Duration // set by SetWriteDeadline
		takes time.Duration
	}{
		{"the limit", time.Minute, 0, time.Minute},
		{"a deadline before it", time.Minute, time.Second, time.Second},
		{"a deadline after it", time.Minute, time.Hour, time.Minute},
		{"a deadline without a limit", 0, time.Second, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				c := newConn(near, tt.limit)
				defer c.Close()
				if tt.set > 0 {
					c.SetWriteDeadline(time.Now().Add(tt.set))
				}
				began := time.Now()
				for range 3 {
					if n, err := c.Write([]byte("x")); n != 1 || err != nil {
						t.Errorf("written: %d, %v", n, err)
					}
				}
				if took := time.Since(began); took != tt.takes {
					t.Errorf("closing took %s", took)
				}
				if _, err := c.Read(make([]byte, 1)); err == nil {
					t.Error("the connection is still open for reads")
				}
			})
		})
	}
}

// TestConnIsSilent: a server that sends anything does not hang, and one that sends nothing does, but not while nats.go connects and
// has set a deadline of its own.
func TestConnIsSilent(t *testing.T) {
	const limit = 6 * time.Second
	for _, tt := range []struct {
		name    string
		set     time.Duration // by SetDeadline
		want    error
		atLeast time.Duration
	}{
		{"connected", 0, nats.ErrStaleConnection, limit - limit/6 + standstill},
		{"connecting", time.Minute, os.ErrDeadlineExceeded, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				c := newConn(near, 0)
				defer c.Close()
				c.watch.limit = limit
				if err := c.SetDeadline(time.Time{}); err != nil {
					t.Fatal(err)
				}
				go func() { // ends after its writes
					for range 20 {
						time.Sleep(limit * 3 / 4) // fake time
						if _, err := far.Write([]byte("x")); err != nil {
							t.Error(err)
						}
					}
				}()
				for range 20 {
					if _, err := c.Read(make([]byte, 1)); err != nil {
						t.Fatal(err)
					}
				}
				if tt.set > 0 {
					if err := c.SetDeadline(time.Now().Add(tt.set)); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				_, err := c.Read(make([]byte, 1))
				if took := time.Since(began); !errors.Is(err, tt.want) || took < tt.atLeast || took > max(tt.set, limit+standstill) {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}

// TestDialerShares: each of several addresses is tried, and gets at most its share of the timeout.
func TestDialerShares(t *testing.T) {
	const timeout = time.Minute
	tried := map[string]bool{}
	d := &dialer{Dialer: net.Dialer{Timeout: timeout, ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		tried[address] = true
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > timeout/3 {
			t.Errorf("%s may take until %v", address, deadline)
		}
		return errors.New("connection refused")
	}}}
	c, err := d.dialAny("tcp", []string{"127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"})
	if c != nil || err == nil || !strings.Contains(err.Error(), "connection refused") || len(tried) != 3 {
		t.Errorf("%v, %v after %v", c, err, tried)
	}
}
