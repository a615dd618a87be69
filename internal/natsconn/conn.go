package natsconn

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxGathered is how much is gathered before whoever adds to it has to write it.
	maxGathered = 128 << 10
	// maxCopied is the largest message that is gathered. A larger one is written at once, behind the others: to copy it
	// costs more than to write it by itself.
	maxCopied = 32 << 10
	// maxSingles is how often in a row one message has to be all that was gathered before there is no crowd any more.
	maxSingles = 8
	// closeTimeout is how long a write may still wait once the connection is closed.
	closeTimeout = time.Second
)

// conn is a connection that writes at once while it talks in turns with the server, and gathers while it does not. It
// takes messages whole, one with each Write, which is what nats.go gives it; with TLS or a WebSocket in between it is
// what these make of them.
//
// It has a goroutine only while something is gathered: nats.go drops a connection that comes to nothing as it connects
// without closing it, and leaves it to the collector.
type conn struct {
	net.Conn
	limit time.Duration  // how long a write may wait for a server that does not read; 0: for ever
	spawn func(f func()) // starts writeGathered
	close sync.Once

	unanswered atomic.Int32 // writes since something was read

	mu       sync.Mutex // held while something is written
	crowd    bool       // what is written is gathered
	gathered []byte
	messages int  // in gathered
	writing  bool // writeGathered is about to
	singles  int  // how often there was only one, in a row
	failed   bool
	closed   bool
	writers  sync.WaitGroup

	patience sync.Mutex
	until    time.Time // by SetWriteDeadline
	closing  bool
}

func newConn(c net.Conn, limit time.Duration) *conn {
	w := &conn{Conn: c, limit: limit}
	w.spawn = w.writers.Go // ends when it has written; Close waits for it
	return w
}

// Read is net.Conn's.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.unanswered.Store(0)
	return n, err
}

// Write writes p or gathers it. Who publishes through nats.go does not hear of a write that fails, but sees the
// connection end; so it is here: there is an error behind Close only.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	if len(p) == 0 { // a flush
		c.flush()
		return 0, nil
	}
	if c.unanswered.Add(1) > 1 && !c.crowd {
		c.crowd, c.singles = true, 0
	}
	if !c.crowd || len(p) > maxCopied {
		c.flush()
		c.patience.Lock()
		until := c.until
		c.patience.Unlock()
		c.write(p, until)
		return len(p), nil
	}
	if len(c.gathered)+len(p) > maxGathered {
		c.flush()
	}
	if !c.writing {
		c.writing = true
		c.spawn(c.writeGathered)
	}
	c.gathered = append(c.gathered, p...)
	c.messages++
	return len(p), nil
}

// flush writes what has been gathered. The caller holds mu.
func (c *conn) flush() {
	if c.messages > 0 {
		c.write(c.gathered, time.Time{}) // what was taken is not to be late by a deadline of later
		c.gathered, c.messages = c.gathered[:0], 0
	}
}

// write writes p now. If that fails the connection ends, and whoever reads from it, nats.go, sees that. The caller
// holds mu.
func (c *conn) write(p []byte, until time.Time) {
	if c.failed {
		return
	}
	c.setDeadline(until)
	if _, err := c.Conn.Write(p); err != nil {
		c.failed = true
		c.Conn.Close()
	}
}

// writeGathered writes what has been gathered. It lets those go first who are about to add to it.
func (c *conn) writeGathered() {
	runtime.Gosched()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = false
	switch c.messages {
	case 0: // somebody else has written it
		return
	case 1:
		c.singles++
	default:
		c.singles = 0
	}
	c.flush()
	if c.singles >= maxSingles {
		c.crowd, c.gathered = false, nil
	}
}

// SetDeadline is net.Conn's, but for the writes that begin after it.
func (c *conn) SetDeadline(t time.Time) error {
	c.SetWriteDeadline(t)
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline is for the writes that begin after it, and not for what is gathered.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.patience.Lock()
	defer c.patience.Unlock()
	c.until = t
	return nil
}

// setDeadline says when the write that is about to begin is given up: at until, or by the limit.
func (c *conn) setDeadline(until time.Time) {
	c.patience.Lock()
	defer c.patience.Unlock()
	if c.closing { // Close has said it
		return
	}
	if c.limit > 0 {
		if t := time.Now().Add(c.limit); until.IsZero() || t.Before(until) {
			until = t
		}
	}
	c.Conn.SetWriteDeadline(until)
}

// Close writes what has been gathered and closes the connection. A server that does not read is waited for no longer
// than closeTimeout.
func (c *conn) Close() (err error) {
	c.close.Do(func() {
		c.patience.Lock()
		c.closing = true
		c.Conn.SetWriteDeadline(time.Now().Add(closeTimeout))
		c.patience.Unlock()
		c.mu.Lock()
		c.flush()
		c.closed = true
		c.mu.Unlock()
		err = c.Conn.Close()
		c.writers.Wait()
	})
	return err
}
