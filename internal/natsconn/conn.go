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
type conn struct {
	net.Conn
	limit time.Duration // how long a write may wait for a server that does not read; 0: for ever
	kick  chan struct{} // something has been gathered
	quit  chan struct{} // closed by Close
	done  chan struct{} // closed when the writer has ended
	close sync.Once

	unanswered atomic.Int32 // writes since something was read

	mu       sync.Mutex // held while something is written
	crowd    bool       // what is written is gathered
	gathered []byte
	messages int // in gathered
	singles  int // how often there was only one, in a row
	failed   bool
	closed   bool

	patience sync.Mutex
	until    time.Time // by SetWriteDeadline
	closing  bool
}

// newConn makes a conn on c. Its writer ends with Close.
func newConn(c net.Conn, limit time.Duration) *conn {
	w := unattended(c, limit)
	go w.writer() // Close waits for it
	return w
}

// unattended is a conn without its writer.
func unattended(c net.Conn, limit time.Duration) *conn {
	return &conn{Conn: c, limit: limit, kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
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
	if c.unanswered.Add(1) > 1 && !c.crowd {
		c.crowd, c.singles = true, 0
	}
	if !c.crowd || len(p) > maxCopied {
		c.flush()
		c.write(p)
		return len(p), nil
	}
	if len(c.gathered)+len(p) > maxGathered {
		c.flush()
	}
	if c.messages == 0 {
		select {
		case c.kick <- struct{}{}:
		default: // the writer has not come to what was gathered before, and others have written
		}
	}
	c.gathered = append(c.gathered, p...)
	c.messages++
	return len(p), nil
}

// flush writes what has been gathered. The caller holds mu.
func (c *conn) flush() {
	if c.messages > 0 {
		c.write(c.gathered)
		c.gathered, c.messages = c.gathered[:0], 0
	}
}

// write writes p now. If that fails the connection ends, and whoever reads from it, nats.go, sees that. The caller
// holds mu.
func (c *conn) write(p []byte) {
	if c.failed {
		return
	}
	c.setDeadline()
	if _, err := c.Conn.Write(p); err != nil {
		c.failed = true
		c.Conn.Close()
	}
}

// writer writes what has been gathered. It lets those go first who are about to add to it.
func (c *conn) writer() {
	defer close(c.done)
	for {
		select {
		case <-c.kick:
			runtime.Gosched()
			c.writeGathered()
		case <-c.quit:
			return
		}
	}
}

// writeGathered is one round of the writer's.
func (c *conn) writeGathered() {
	c.mu.Lock()
	defer c.mu.Unlock()
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

// SetWriteDeadline is for the writes that begin after it.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.patience.Lock()
	defer c.patience.Unlock()
	c.until = t
	return nil
}

// setDeadline says when the write that is about to begin is given up.
func (c *conn) setDeadline() {
	c.patience.Lock()
	defer c.patience.Unlock()
	if c.closing { // Close has said it
		return
	}
	until := c.until
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
		close(c.quit)
		err = c.Conn.Close()
		<-c.done
	})
	return err
}
