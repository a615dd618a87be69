package jsonrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// Options are a Conn's settings; the zero value works.
type Options struct {
	// Handler answers requests from the other side, each on a goroutine of its own. Without a Handler, ping is answered
	// with {} and everything else with CodeMethodNotFound, so that no peer waits for ever.
	Handler rpc.Handler

	MaxHandlers int // handlers running concurrently; further requests fail with CodeOverloaded. Default 256
	MaxLine     int // bytes; default DefaultMaxLine

	// Reserve, if set, is called from the reader before a line gets a buffer of more than 256 KiB, with the number of
	// bytes that it grows by, and with a negative number when they are released. If it returns false, the line is
	// discarded, and the call that it answers fails with CodeOverloaded. It may be shared by many Conns.
	// Bytes that Reply.Keep has taken over are released with them, from another goroutine.
	Reserve func(n int64) bool

	// OnNotification is called from the reader for every notification: it must not block, and params is only
	// valid during the call. If Handler is set, it receives the notifications instead.
	OnNotification func(method string, params []byte)

	// OnNoise is called from the reader for a line that is not a message, with the reason. It must not block, and line
	// is only valid during the call (and nil if the line was too long).
	OnNoise func(line []byte, why error)

	// Gone is called once, when the stream has ended, and returns the error for calls in flight; their ran is "maybe".
	// If it is nil or returns nil, they fail with CodeExited.
	Gone func(err error) *rpc.Error
}

// Stats counts what a Conn dropped.
type Stats struct {
	Noise   uint64 // lines that were not a message
	Unknown uint64 // answers without a pending request: late, duplicate, or with an unknown id
	Long    uint64 // lines over MaxLine
	Dropped uint64 // answers and notifications to a peer that does not read
}

// Conn sends and receives JSON-RPC messages, one per line, over a reader and a writer. It is a Caller; answers may
// arrive in any order. NewConn starts nothing: Run does the work.
//
// An idle Conn has only its reader's goroutine.
type Conn struct {
	r   io.Reader
	opt Options

	mu      sync.Mutex
	out     writer
	pending pending
	timer   *time.Timer
	armed   time.Time  // when timer fires; zero: not set
	gone    *rpc.Error // set when no answer can arrive any more
	serving serving

	noise, unknown, long, dropped atomic.Uint64
	received                      atomic.Uint64
}

// maxRaws limits the answers queued for a peer that does not read them. The limit for notifications, which may be lost,
// is half of it.
const maxRaws = 1024

// NewConn makes a Conn over r and w. If w has a method TryWrite(p) (n, err) that writes as much as possible without
// blocking, the Conn uses it. So that Run ends with its context, r should have SetReadDeadline or Close.
func NewConn(r io.Reader, w io.Writer, opt Options) *Conn {
	if opt.MaxHandlers <= 0 {
		opt.MaxHandlers = 256
	}
	c := &Conn{r: r, opt: opt, serving: serving{max: opt.MaxHandlers, cancel: map[string]context.CancelFunc{}}}
	c.out = writer{to: w, mu: &c.mu, pending: &c.pending, failed: func() func() bool { return interruptSoon(r) }}
	c.out.try, _ = w.(interface{ TryWrite([]byte) (int, error) })
	return c
}

// Stats returns what was dropped so far.
func (c *Conn) Stats() Stats {
	return Stats{Noise: c.noise.Load(), Unknown: c.unknown.Load(), Long: c.long.Load(), Dropped: c.dropped.Load()}
}

// Mark is a moment of a Conn, to see what has happened since.
type Mark struct {
	c              *Conn
	received, sent uint64
}

// Mark returns the present moment.
func (c *Conn) Mark() Mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Mark{c, c.received.Load(), c.pending.last}
}

// HasReceived reports whether anything has been received since: the other side is running.
func (m Mark) HasReceived() bool { return m.c.received.Load() != m.received }

// Waits reports whether a request that had been sent has no answer yet, and is within its time.
func (m Mark) Waits() bool {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	for id := range m.c.pending.of {
		if id <= m.sent {
			return true
		}
	}
	return false
}

// Run reads until the stream ends (then it returns nil for EOF) or ctx does, and returns when the writer and all handlers
// have stopped. Answers that are still in the pipe are delivered; then all other calls in flight fail.
func (c *Conn) Run(ctx context.Context) error {
	hctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { interrupt(c.r) })
	defer stop()

	c.out.begin()
	err := c.readLoop(hctx)
	c.fail(c.end(ctx, err))
	cancel()
	c.serving.handlers.Wait()
	werr := c.out.end()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case werr != nil:
		return fmt.Errorf("writing to the peer: %w", werr)
	case errors.Is(err, io.EOF):
		return nil
	}
	return fmt.Errorf("reading from the peer: %w", err)
}

// end returns the error for calls in flight at the end of the stream.
func (c *Conn) end(ctx context.Context, err error) *rpc.Error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if c.opt.Gone != nil {
		if e := c.opt.Gone(err); e != nil {
			return e
		}
	}
	return rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "the connection ended before the answer: %v", err)
}

// fail ends all pending calls with e, and all that are started later.
func (c *Conn) fail(e *rpc.Error) {
	var lost []*Exchange
	c.mu.Lock()
	c.gone = e
	for id := range c.pending.of {
		lost = append(lost, c.remove(id))
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	for _, x := range lost {
		deliver(x, e)
	}
}

// remove removes the exchange with this id from the pending table and, if it was not written yet, from the write queue:
// then it does not run, and no memory is held for a peer that does not read. It returns nil if the id is unknown. The
// caller holds mu, and must deliver the reply.
func (c *Conn) remove(id uint64) *Exchange {
	x := c.pending.remove(id)
	if x != nil {
		c.out.unlink(x)
	}
	return x
}

// deliver ends x with the error e; a request that was never written did not run.
func deliver(x *Exchange, e *rpc.Error) {
	if x.queued {
		e = notRun(e)
	}
	x.Sink.Deliver(x, Reply{Err: e})
}

// notRun returns a copy of e with ran "no".
func notRun(e *rpc.Error) *rpc.Error {
	d := e.Details()
	d.Ran = rpc.RanNo
	data, err := json.Marshal(d)
	if err != nil { // strings and numbers always encode
		panic(err)
	}
	return &rpc.Error{Code: e.Code, Message: e.Message, Data: data}
}

// Start sends x and returns without waiting; the reply is delivered to x.Sink.
func (c *Conn) Start(x *Exchange) {
	c.mu.Lock()
	if c.gone != nil {
		e := c.gone
		c.mu.Unlock()
		x.Sink.Deliver(x, Reply{Err: notRun(e)})
		return
	}
	c.pending.add(x)
	if !x.Deadline.IsZero() && (c.armed.IsZero() || x.Deadline.Before(c.armed)) {
		c.arm(x.Deadline)
	}
	c.out.send(x)
}

// Flush writes the exchanges that were started with Hold, unless they have already been written.
func (c *Conn) Flush() { c.out.flush() }

// Cancel ends x with CodeCancelled. It returns false if x has already ended. If the request was written, id is its id,
// for a notifications/cancelled to the other side; otherwise id is 0.
func (c *Conn) Cancel(x *Exchange) (id uint64, ok bool) {
	c.mu.Lock()
	removed := x.id != 0 && c.pending.of[x.id] == x
	if removed {
		c.remove(x.id)
		if !x.queued {
			id = x.id
		}
	}
	c.mu.Unlock()
	if removed {
		deliver(x, rpc.Errorf(rpc.CodeCancelled, rpc.RanMaybe, "the call was cancelled"))
	}
	return id, removed
}

// Call sends a request and waits for its result, which the caller may keep. It fails with CodeTimeout when the deadline
// of ctx passes, and with CodeCancelled when ctx is cancelled. When the deadline passes, the other side gets notifications/cancelled,
// too, unless the request is initialize, for which MCP forbids that.
func (c *Conn) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	result, id, err := Wait(ctx, c, method, params)
	if id != 0 && method != "initialize" {
		_ = c.Notify("notifications/cancelled", json.RawMessage(fmt.Sprintf(`{"requestId":%d}`, id))) // fails if the connection has ended
	}
	return result, err
}

// Notify sends a notification without waiting until it is written. It fails if the connection has ended or the peer has
// stopped reading.
func (c *Conn) Notify(method string, params json.RawMessage) error {
	return c.sendRaw(AppendRequest(nil, nil, method, params), maxRaws/2, nil)
}

// arm sets the timer that ends overdue exchanges; the caller holds mu. One timer serves all exchanges: when it fires,
// expire ends those that are due and sets it to the earliest of the other deadlines.
func (c *Conn) arm(at time.Time) {
	c.armed = at
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(at), c.expire)
		return
	}
	c.timer.Reset(time.Until(at))
}

func (c *Conn) expire() {
	var due []*Exchange
	now := time.Now()
	c.mu.Lock()
	c.armed = time.Time{}
	var next time.Time
	for _, x := range c.pending.of {
		switch {
		case x.Deadline.IsZero():
		case !x.Deadline.After(now):
			due = append(due, c.remove(x.id))
		case next.IsZero() || x.Deadline.Before(next):
			next = x.Deadline
		}
	}
	if !next.IsZero() && c.gone == nil {
		c.arm(next)
	}
	c.pending.shrink()
	c.mu.Unlock()
	for _, x := range due {
		deliver(x, rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "no answer to %s in time", x.Method))
	}
}

// interrupt ends a read of r that is waiting, and all later ones.
func interrupt(r io.Reader) {
	if d, ok := r.(interface{ SetReadDeadline(time.Time) error }); ok && d.SetReadDeadline(time.Now()) == nil {
		return
	}
	if d, ok := r.(io.Closer); ok {
		d.Close()
	}
}

// interruptSoon interrupts the reader shortly after a write has failed: answers that the peer sent before it closed its side
// are still in the pipe. undo undoes that, if it is possible.
func interruptSoon(r io.Reader) (undo func() bool) {
	const moment = time.Second
	if d, ok := r.(interface{ SetReadDeadline(time.Time) error }); ok && d.SetReadDeadline(time.Now().Add(moment)) == nil {
		return func() bool { return false }
	}
	return time.AfterFunc(moment, func() { interrupt(r) }).Stop
}
