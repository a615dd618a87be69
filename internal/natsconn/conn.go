package natsconn

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// maxBuffered is how much is buffered before the next Write must flush it.
	maxBuffered = 128 << 10
	// maxCopied is the largest message that is buffered. A larger one is written directly after the buffered ones,
	// because copying it costs more than a write of its own.
	maxCopied = 32 << 10
	// maxSingles is the number of consecutive flushes of a single message that end batching.
	maxSingles = 8
	// closeTimeout is how long a pending write may continue after Close.
	closeTimeout = time.Second
)

// conn is a connection that writes immediately while requests and replies alternate, and buffers while they do not.
// Each Write is one complete message from nats.go, or what TLS or a WebSocket in between make of it.
//
// It has a goroutine only while something is buffered: nats.go does not close a connection that fails during its
// setup but leaves it to the garbage collector, so a permanent goroutine would leak.
type conn struct {
	net.Conn
	try   interface{ TryWrite([]byte) (int, error) } // Conn, if it can
	limit time.Duration                              // how long a write may wait for a server that does not read; 0: no limit
	spawn func(f func())                             // starts flushSoon
	close sync.Once

	dialing *atomic.Bool // until the server has sent its first bytes

	watch watch

	unanswered atomic.Int32 // writes since the last read

	mu           sync.Mutex // held during writes
	batching     bool       // writes are buffered
	buffered     []byte
	messages     int  // in buffered
	flushPending bool // flushSoon has been started
	singles      int  // consecutive flushes of a single message
	failed       bool
	closed       bool
	writers      sync.WaitGroup

	later laterWrites
}

// watch detects a server that hangs.
type watch struct {
	limit  time.Duration // of the silence; 0: none
	set    time.Time     // when Read last set a deadline for it
	paused atomic.Bool   // nats.go has set a deadline for reads, while it connects
}

// laterWrites is what was set for writes that have not begun.
type laterWrites struct {
	mu       sync.Mutex
	deadline time.Time // set by SetWriteDeadline
	closing  bool
}

func newConn(c net.Conn, limit time.Duration) *conn {
	w := &conn{Conn: c, limit: limit}
	w.try, _ = c.(interface{ TryWrite([]byte) (int, error) })
	w.spawn = w.writers.Go // ends after its write; Close waits for it
	return w
}

// Read implements net.Conn. It fails with nats.ErrStaleConnection if the server hangs. Any byte counts as a sign of life: with
// many large answers under way on a slow connection, the answer to a ping arrives after them.
func (c *conn) Read(p []byte) (int, error) {
	if now := time.Now(); c.watch.limit > 0 && now.Sub(c.watch.set) > c.watch.limit/6 && !c.watch.paused.Load() {
		c.watch.set = now
		c.Conn.SetReadDeadline(now.Add(c.watch.limit))
	}
	n, err := c.Conn.Read(p)
	if c.isSilent(err) { // or this process stood still, and the bytes are there
		c.Conn.SetReadDeadline(time.Now().Add(standstill))
		if n, err = c.Conn.Read(p); c.isSilent(err) {
			err = nats.ErrStaleConnection
		}
		c.watch.set = time.Time{}
	}
	if c.dialing != nil {
		c.dialing.Store(false)
		c.dialing = nil
	}
	c.unanswered.Store(0)
	return n, err
}

// standstill is how long a server that seems to hang gets to send something, in case that it was this process that stood still.
const standstill = 500 * time.Millisecond

// isSilent reports whether a read ended because the server has sent nothing.
func (c *conn) isSilent(err error) bool {
	return err != nil && errors.Is(err, os.ErrDeadlineExceeded) && !c.watch.paused.Load()
}

// Write writes p or buffers it. A failed write is not returned as an error, because nats.go's publishers do not see
// write errors either: it ends the connection. Write returns an error only after Close.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	if len(p) == 0 { // nats.go flushes
		c.flush()
		return 0, nil
	}
	if c.unanswered.Add(1) > 1 && !c.batching {
		c.batching, c.singles = true, 0
	}
	if !c.batching || len(p) > maxCopied {
		c.flush()
		c.later.mu.Lock()
		until := c.later.deadline
		c.later.mu.Unlock()
		c.write(p, until)
		return len(p), nil
	}
	if len(c.buffered)+len(p) > maxBuffered {
		c.flush()
	}
	if !c.flushPending {
		c.flushPending = true
		c.spawn(c.flushSoon)
	}
	c.buffered = append(c.buffered, p...)
	c.messages++
	return len(p), nil
}

// flush writes what is buffered. The caller holds mu.
func (c *conn) flush() {
	if c.messages > 0 {
		c.write(c.buffered, time.Time{}) // a deadline set after these messages were accepted does not apply to them
		c.buffered, c.messages = c.buffered[:0], 0
	}
}

// write writes p now. A failure closes the connection, which nats.go's read loop detects. It sets a deadline only if it has
// to wait, because setting one costs as much as a small write. The caller holds mu.
func (c *conn) write(p []byte, until time.Time) {
	if c.failed {
		return
	}
	var n int
	var err error
	if c.try != nil {
		n, err = c.try.TryWrite(p)
	}
	if n < len(p) && err == nil {
		c.setDeadline(until)
		_, err = c.Conn.Write(p[n:])
	}
	if err != nil {
		c.failed = true
		c.Conn.Close()
	}
}

// flushSoon writes what is buffered, after yielding to goroutines that may add to it.
func (c *conn) flushSoon() {
	runtime.Gosched()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushPending = false
	switch c.messages {
	case 0: // already flushed
		return
	case 1:
		c.singles++
	default:
		c.singles = 0
	}
	c.flush()
	if c.singles >= maxSingles {
		c.batching, c.buffered = false, nil
	}
}

// SetDeadline implements net.Conn; the write deadline applies to later writes only.
func (c *conn) SetDeadline(t time.Time) error {
	c.SetWriteDeadline(t)
	return c.SetReadDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.watch.paused.Store(!t.IsZero())
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline applies to later writes only, not to buffered messages.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.later.mu.Lock()
	defer c.later.mu.Unlock()
	c.later.deadline = t
	return nil
}

// setDeadline sets the deadline of the next write: until, or the limit.
func (c *conn) setDeadline(until time.Time) {
	c.later.mu.Lock()
	defer c.later.mu.Unlock()
	if c.later.closing { // Close has set it
		return
	}
	if c.limit > 0 {
		if t := time.Now().Add(c.limit); until.IsZero() || t.Before(until) {
			until = t
		}
	}
	c.Conn.SetWriteDeadline(until)
}

// Close writes what is buffered and closes the connection. It waits for a server that does not read at most for
// closeTimeout.
func (c *conn) Close() (err error) {
	c.close.Do(func() {
		c.later.mu.Lock()
		c.later.closing = true
		c.Conn.SetWriteDeadline(time.Now().Add(closeTimeout))
		c.later.mu.Unlock()
		c.mu.Lock()
		c.flush()
		c.closed = true
		c.mu.Unlock()
		err = c.Conn.Close()
		c.writers.Wait()
	})
	return err
}
