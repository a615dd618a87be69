package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Config says where an extension is and how to speak to it. URL is required.
type Config struct {
	URL     string            // http or https, with its placeholders replaced
	Headers map[string]string // sent with every request, likewise; what the protocol itself sets comes on top
	Dialect manifest.Dialect  // ext, mcp, or auto, which is the default: the answer to initialize decides

	Allow []netip.Prefix // link-local and metadata addresses that may be connected to; others are refused

	MaxResult int64 // bytes of one answer or event; default 64 MiB

	// OnNotification is told what the server says unasked, one at a time; it must not block, and params is
	// only valid during the call. After a session was opened again it is called with
	// notifications/tools/list_changed and no params: it may be another server's version by now. So it is after the
	// stream of what the server says was interrupted, where the server does not say again what was missed.
	OnNotification func(method string, params []byte)

	// OnReopened is told, before that, what the server answered to the initialize that opened the session again:
	// its name, version and capabilities may be others. It must not block.
	OnReopened func(result json.RawMessage)

	Logger *slog.Logger // nil: silence
	Client *http.Client // its transport instead of one made for this Conn; for tests
}

// DefaultMaxResult is the longest answer where Config names no other limit.
const DefaultMaxResult = 64 << 20

const (
	maxNotes    = 256              // notifications and answers of ours under way
	noteTimeout = 10 * time.Second // for one of them
)

// Conn is a conversation over HTTP. It is an rpc.Caller and an rpc.Starter; any number of requests may be under
// way side by side, each in a request of its own. New starts nothing: Run does the work, and what is started
// before waits for it.
type Conn struct {
	at   *endpoint
	tell teller
	log  *slog.Logger

	reopened func(result json.RawMessage) // or nil

	mu      sync.Mutex
	flights flights
	talk    talk
	gone    *rpc.Error // set when nothing can be sent any more
	notes   int

	run   func(func(ctx context.Context)) // starts what Run waits for; nil while Run does not run
	early []func(ctx context.Context)     // what was started before
	end   context.CancelCauseFunc         // ends Run
}

// New makes a Conn. A Config that cannot work, such as a URL that is none, is Run's error and every call's.
func New(cfg Config) *Conn {
	c := &Conn{
		at:   newEndpoint(cfg),
		tell: teller{to: cfg.OnNotification},
		log:  cfg.Logger,

		reopened: cfg.OnReopened,
	}
	c.at.base = cfg.Client
	c.talk.dialect = cmp.Or(cfg.Dialect, manifest.Auto)
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Run is the Conn's life. It returns when ctx ends, with its cause, or with the reason why the session cannot go
// on: the server is there but refuses to open it again. Before that every call under way has failed, and the
// session has been ended with a DELETE. It may be called once.
func (c *Conn) Run(ctx context.Context) error {
	if c.at.bad != nil {
		c.close(c.at.bad)
		return c.at.bad
	}
	life, end := context.WithCancelCause(ctx)
	defer end(nil)
	// The connections outlive the calls by the good-bye.
	wires, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	c.at.connect(wires)
	defer c.at.client.CloseIdleConnections()

	var wg sync.WaitGroup
	c.mu.Lock()
	c.end = end
	c.run = func(f func(context.Context)) {
		wg.Go(func() { f(life) }) // owned by Run, which waits; ends with its request, at the latest with life
	}
	for _, f := range c.early {
		c.run(f)
	}
	c.early = nil
	c.mu.Unlock()

	<-life.Done()
	err := context.Cause(life)
	c.close(err)
	wg.Wait()
	c.leave(wires)
	return err
}

// close fails what is under way and what is started from now on.
func (c *Conn) close(why error) {
	c.mu.Lock()
	c.gone = rpc.Errorf(rpc.CodeExited, rpc.RanNo, "the conversation with %s has ended: %v", c.at.name, why)
	c.run, c.early = nil, nil
	lost := c.flights.clear()
	c.mu.Unlock()
	for _, f := range lost {
		f.x.Sink.Deliver(f.x, rpc.Reply{Err: rpc.Errorf(rpc.CodeExited, f.ran(),
			"the conversation with %s ended before the answer: %v", c.at.name, why)})
	}
}

// startLocked runs f under Run's care, or as soon as Run runs; the caller holds mu and has looked at gone.
func (c *Conn) startLocked(f func(ctx context.Context)) {
	if c.run == nil {
		c.early = append(c.early, f)
		return
	}
	c.run(f)
}

// Start sends x and returns without waiting; x.Sink is told how it ends. x.ID stays 0: the id it was sent with
// is Cancel's to tell, and that of a call which timed out is told to the server from here.
func (c *Conn) Start(x *rpc.Exchange) {
	c.mu.Lock()
	if gone := c.gone; gone != nil {
		c.mu.Unlock()
		x.Sink.Deliver(x, rpc.Reply{Err: gone})
		return
	}
	f := c.flights.add(x)
	c.startLocked(func(ctx context.Context) { c.fly(ctx, f) })
	c.mu.Unlock()
}

// Cancel ends x with rpc.CodeCancelled and aborts its request, unless it has ended already: then it reports
// false. Where the request may have reached the server, id is the one it was sent with, so that the server can be
// told (to MCP a broken connection is no cancellation); else id is 0.
func (c *Conn) Cancel(x *rpc.Exchange) (id uint64, ok bool) {
	c.mu.Lock()
	f := c.flights.of[x]
	if f == nil {
		c.mu.Unlock()
		return 0, false
	}
	c.flights.take(f)
	abort := f.abort
	c.mu.Unlock()
	ran := f.ran()
	if ran == rpc.RanMaybe {
		id = f.id
	}
	if abort != nil {
		abort()
	}
	x.Sink.Deliver(x, rpc.Reply{Err: rpc.Errorf(rpc.CodeCancelled, ran, "the call was cancelled")})
	return id, true
}

// Call sends a request and waits for its answer, whose result is the caller's to keep. It fails with
// rpc.CodeTimeout when ctx's deadline passes and with rpc.CodeCancelled when ctx is cancelled.
func (c *Conn) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	w := rpc.NewWaiter()
	x := &rpc.Exchange{Method: method, Params: params, Sink: w}
	x.Deadline, _ = ctx.Deadline()
	c.Start(x)
	select {
	case <-w.Done():
		return w.Result()
	case <-ctx.Done():
	}
	id, _ := c.Cancel(x)
	result, err := w.Result()
	if e, ok := errors.AsType[*rpc.Error](err); ok && e.Code == rpc.CodeCancelled && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = rpc.NewError(rpc.CodeTimeout, e.Details(), "no answer to %s in time", method)
		c.tellCancelled(id, method)
	}
	return result, err
}

// Notify sends a notification, without waiting; what the server answers is of no interest. It fails when the
// conversation has ended or too many are under way. What is called after notifications/initialized is not sent
// before the server has taken that.
func (c *Conn) Notify(method string, params json.RawMessage) error {
	if method == cancelled && nameless(params) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, body := c.talk.session, rpc.AppendRequest(nil, nil, method, params)
	if method != initialized || s == nil {
		return c.noteLocked(s, body, nil)
	}
	ready := make(chan struct{})
	err := c.noteLocked(s, body, func(ctx context.Context) {
		close(ready)
		c.listen(ctx, s)
	})
	if err == nil {
		s.ready = ready
	}
	return err
}

const (
	initialized = "notifications/initialized"
	cancelled   = "notifications/cancelled"
	listChanged = "notifications/tools/list_changed"
)

// nameless reports whether a notifications/cancelled is about request 0. That is what Exchange.ID says of an
// exchange sent from here, and nobody's: the request's own id has been told already.
func nameless(params []byte) bool {
	at, ok := rpc.Member(params, "requestId")
	return ok && string(at.In(params)) == "0"
}

// tellCancelled tells the server that nobody waits for request id any more. There is nobody to tell if it
// cannot be said. The id 0 is none, and initialize may not be cancelled.
func (c *Conn) tellCancelled(id uint64, method string) {
	if id == 0 || method == "initialize" {
		return
	}
	params := append(strconv.AppendUint([]byte(`{"requestId":`), id, 10), `,"reason":"timeout"}`...)
	if err := c.Notify(cancelled, params); err != nil {
		c.log.Debug("the server is not told of a time-out", "error", err)
	}
}

// noteLocked posts a message that is no request, without waiting; when the server has taken it, or will not, it
// calls after, if there is one. The caller holds mu.
func (c *Conn) noteLocked(s *session, body []byte, after func(ctx context.Context)) error {
	if c.gone != nil {
		return c.gone
	}
	if c.notes >= maxNotes {
		return rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: maxNotes},
			"%s does not take its notifications: %d are under way", c.at.name, maxNotes)
	}
	c.notes++
	c.startLocked(func(ctx context.Context) {
		err := c.postNote(ctx, s, body)
		if err != nil && ctx.Err() == nil {
			c.log.Debug("a notification was not taken", "error", err)
		}
		c.mu.Lock()
		c.notes--
		c.mu.Unlock()
		if after != nil {
			after(ctx)
		}
	})
	return nil
}

// postNote posts a message that is no request and waits until the server has taken it.
func (c *Conn) postNote(ctx context.Context, s *session, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	resp, err := c.at.do(ctx, http.MethodPost, body, s.header(bothKinds))
	if err != nil {
		return c.at.fault(err, rpc.RanMaybe)
	}
	defer resp.Body.Close()
	defer time.AfterFunc(patience, cancel).Stop()
	io.CopyN(io.Discard, resp.Body, 64<<10) // which as a rule is nothing
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answered %s", c.at.name, statusLine(resp.StatusCode))
	}
	return nil
}

// teller passes on what servers say, from many requests at once, one at a time.
type teller struct {
	mu sync.Mutex
	to func(method string, params []byte)
}

func (t *teller) notification(method string, params []byte) {
	if t.to == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to(method, params)
}
