package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Options are a Conn's settings; the zero value works.
type Options struct {
	// Handler answers requests from the other side, each on a goroutine of its own. Without one, ping is
	// answered with {} and everything else with CodeMethodNotFound, so that no peer waits for ever.
	Handler Handler

	MaxHandlers int // handlers running side by side; more are answered CodeOverloaded. Default 256
	MaxLine     int // bytes; default DefaultMaxLine

	// Reserve, if set, is called from the reader before a line gets a buffer of more than 256 KiB, with the number of
	// bytes that it grows by, and with a negative number when they are given back. Where it returns false the line is
	// thrown away, and the call that it answers fails with CodeOverloaded. It may be shared by many Conns.
	Reserve func(n int64) bool

	// OnNotification is called from the reader for every notification: it must not block, and params is only
	// valid during the call. With a Handler set, notifications go there instead.
	OnNotification func(method string, params []byte)

	// OnNoise is called from the reader for a line that is no message, and why. It must not block, and line
	// is only valid during the call (and nil for a line that was too long to keep).
	OnNoise func(line []byte, why error)

	// Gone is asked once, when the stream has ended, for the error that calls in flight fail with; their ran
	// is "maybe". Nil, or a nil answer, means CodeExited.
	Gone func(err error) *Error
}

// Stats counts what a Conn dropped.
type Stats struct {
	Noise   uint64 // lines that were no message
	Unknown uint64 // answers to nothing that waits: late, twice, or with an id never given
	Long    uint64 // lines over MaxLine
	Dropped uint64 // answers and notifications to a peer that does not read
}

// Conn speaks JSON-RPC, one message a line, over a reader and a writer, in both directions at once. It is a
// Caller; answers may come in any order. NewConn starts nothing: Run does the work.
//
// Writing is done by whoever finds nobody at it, with one attempt that cannot block where w offers
// TryWrite (a pipe does); everything else goes through one queue to one goroutine, which writes all that
// has gathered with a single call, and ends when there is no more: while nothing is written, there is none.
// No lock is held across either. What a Conn keeps while it is quiet is its reader's goroutine.
type Conn struct {
	r   io.Reader
	w   io.Writer
	opt Options

	try interface{ TryWrite([]byte) (int, error) } // w, if it can

	mu       sync.Mutex
	pending  pending
	head     *Exchange // the write queue
	tail     *Exchange
	raws     int           // answers and notifications in it
	writing  bool          // somebody owns out and w
	left     bool          // writing is left to the goroutine that Run will start
	out      *batch        // what is being written
	werr     error         // why nothing can be written any more
	drainer  func()        // c.drain, as one value for all go statements; nil before Run
	quit     chan struct{} // Run waits at its end for whoever writes
	unbreak  func() bool   // takes back what breakRead did; set when a write has failed and that was dealt with
	timer    *time.Timer
	armed    time.Time // when timer fires; zero: not set
	gone     *Error    // set when no answer can come any more
	serving  map[string]context.CancelFunc
	handlers sync.WaitGroup
	running  int

	noise, unknown, long, dropped atomic.Uint64
	received                      atomic.Uint64
}

// maxRaws bounds the answers waiting for a peer that does not read them; notifications, which may be lost,
// get half of that.
const maxRaws = 1024

// NewConn makes a Conn over r and w. If w has a method TryWrite(p) (n, err) that writes what it can without
// blocking, it is used. To let Run end when its context does, r should have SetReadDeadline or Close.
//
// If r has a method
//
//	ReadLazy(buffer func() []byte, release func()) (n int, err error)
//
// it is used in the place of Read, so that a Conn has no buffer while it waits. ReadLazy calls buffer when it is
// about to try to read, and reads into what that returned; when there is nothing to read it calls release before it
// waits, and buffer again afterwards. Its results are Read's, for the last buffer. It must not call either function
// after it has returned, nor both at once.
func NewConn(r io.Reader, w io.Writer, opt Options) *Conn {
	if opt.MaxHandlers <= 0 {
		opt.MaxHandlers = 256
	}
	c := &Conn{r: r, w: w, opt: opt}
	c.try, _ = w.(interface{ TryWrite([]byte) (int, error) })
	return c
}

// Stats returns what was dropped so far.
func (c *Conn) Stats() Stats {
	return Stats{Noise: c.noise.Load(), Unknown: c.unknown.Load(), Long: c.long.Load(), Dropped: c.dropped.Load()}
}

// Received is how many bytes the other side has sent so far: a sign of life when it grows.
func (c *Conn) Received() uint64 { return c.received.Load() }

// Run reads until the stream ends (nil for EOF) or ctx does, and returns when the writer and all handlers
// have stopped. Before that every call in flight has failed: the answers that were in the pipe first.
func (c *Conn) Run(ctx context.Context) error {
	hctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, c.interruptRead)
	defer stop()

	c.beginWriting()
	err := c.readLoop(hctx)
	c.fail(c.end(ctx, err))
	cancel()
	c.handlers.Wait()
	werr := c.endWriting()
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

// end asks the owner what calls in flight shall be told.
func (c *Conn) end(ctx context.Context, err error) *Error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if c.opt.Gone != nil {
		if e := c.opt.Gone(err); e != nil {
			return e
		}
	}
	return Errorf(CodeExited, RanMaybe, "the connection ended before the answer: %v", err)
}

// fail ends all that waits, and everything started from now on.
func (c *Conn) fail(e *Error) {
	var lost []*Exchange
	c.mu.Lock()
	c.gone = e
	c.pending.each(func(x *Exchange) { lost = append(lost, c.take(x.id)) })
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	for _, x := range lost {
		c.deliver(x, e)
	}
}

// take removes the exchange with this id from what waits for its answer, and to be written where it was not yet: it is
// not run then, and a peer that does not read keeps nothing of it alive. Whoever takes it delivers it; nil if there is
// none. The caller holds mu.
func (c *Conn) take(id uint64) *Exchange {
	x := c.pending.take(id)
	if x != nil {
		c.unlink(x)
	}
	return x
}

// deliver ends x with an error made here; one that was never written cannot have run.
func (c *Conn) deliver(x *Exchange, e *Error) {
	if x.queued {
		e = notRun(e)
	}
	x.Sink.Deliver(x, Reply{Err: e})
}

// notRun is e with ran "no".
func notRun(e *Error) *Error {
	d := e.Details()
	d.Ran = RanNo
	data, err := json.Marshal(d)
	if err != nil { // strings and numbers always encode
		panic(err)
	}
	return &Error{Code: e.Code, Message: e.Message, Data: data}
}

// Start sends x and returns without waiting; x.Sink is told how it ends.
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
	c.send(x)
}

// Cancel ends x with CodeCancelled, unless it has ended already: then it reports false. Where the request
// had been written, id is the one it was written with, so that the other side can be told; else id is 0.
func (c *Conn) Cancel(x *Exchange) (id uint64, ok bool) {
	c.mu.Lock()
	taken := x.id != 0 && c.pending.get(x.id) == x
	if taken {
		c.take(x.id)
		if !x.queued {
			id = x.id
		}
	}
	c.mu.Unlock()
	if taken {
		c.deliver(x, Errorf(CodeCancelled, RanMaybe, "the call was cancelled"))
	}
	return id, taken
}

// Call sends a request and waits for its answer, whose result is the caller's to keep. It fails with
// CodeTimeout when ctx's deadline passes and with CodeCancelled when ctx is cancelled.
func (c *Conn) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	w := NewWaiter()
	x := &Exchange{Method: method, Params: params, Sink: w}
	x.Deadline, _ = ctx.Deadline()
	c.Start(x)
	select {
	case <-w.Done():
		return w.Result()
	case <-ctx.Done():
		c.Cancel(x)
	}
	result, err := w.Result()
	if e := (*Error)(nil); errors.As(err, &e) && e.Code == CodeCancelled && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = NewError(CodeTimeout, e.Details(), "no answer to %s in time", method)
	}
	return result, err
}

// Notify sends a notification. It does not wait for it to be written; it fails when the connection has ended
// or the peer has stopped reading.
func (c *Conn) Notify(method string, params json.RawMessage) error {
	return c.sendRaw(AppendRequest(nil, nil, method, params), maxRaws/2, nil)
}

// arm sets the timer that ends overdue exchanges; the caller holds mu. One timer serves all: when it fires
// it ends what is due and is set to the earliest of the rest.
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
	c.pending.each(func(x *Exchange) {
		switch {
		case x.Deadline.IsZero():
		case !x.Deadline.After(now):
			due = append(due, c.take(x.id))
		case next.IsZero() || x.Deadline.Before(next):
			next = x.Deadline
		}
	})
	if !next.IsZero() && c.gone == nil {
		c.arm(next)
	}
	c.pending.rest()
	c.mu.Unlock()
	for _, x := range due {
		c.deliver(x, Errorf(CodeTimeout, RanMaybe, "no answer to %s in time", x.Method))
	}
}

func (c *Conn) interruptRead() {
	if d, ok := c.r.(interface{ SetReadDeadline(time.Time) error }); ok && d.SetReadDeadline(time.Now()) == nil {
		return
	}
	if d, ok := c.r.(io.Closer); ok {
		d.Close()
	}
}

// breakRead gives the reader a moment more after a write has failed: what the peer had answered before it
// closed its side is still in the pipe. keep takes that back where it can be.
func (c *Conn) breakRead() (keep func() bool) {
	const moment = time.Second
	if d, ok := c.r.(interface{ SetReadDeadline(time.Time) error }); ok && d.SetReadDeadline(time.Now().Add(moment)) == nil {
		return func() bool { return false }
	}
	return time.AfterFunc(moment, c.interruptRead).Stop
}

// interruptWrite bounds the last flush to a peer that may have stopped reading.
func (c *Conn) interruptWrite() {
	if d, ok := c.w.(interface{ SetWriteDeadline(time.Time) error }); ok {
		d.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	}
}
