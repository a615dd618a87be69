package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Config is the address of an extension and how to call it. URL is required.
type Config struct {
	URL     string            // http or https, with its placeholders replaced
	Headers map[string]string // sent with every request, placeholders replaced; the protocol's own headers override them
	Dialect manifest.Dialect  // ext, mcp, or auto, which is the default: the answer to initialize decides

	Allow []netip.Prefix // link-local and metadata addresses that may be connected to; others are refused

	MaxResult int64 // bytes of one answer or event; default 64 MiB

	// OnNotification is called for each notification of the server, one at a time; it must not block, and params is
	// only valid during the call. After a session was opened again it is called with notifications/tools/list_changed
	// and no params, since the server's version may have changed. The same happens after the stream of the server's
	// messages was interrupted.
	OnNotification func(method string, params []byte)

	// OnReopened is called before that, and before a call uses the new session, with the result of the initialize that
	// opened it: the server's name, version and capabilities may have changed. It must not block.
	OnReopened func(result json.RawMessage)

	// OnGap is called when the stream of the server's messages was interrupted: what it sent then may be lost.
	OnGap func()

	Logger *slog.Logger // nil discards
	Client *http.Client // its transport replaces the one made for this Conn; for tests
}

// DefaultMaxResult is the default of Config.MaxResult.
const DefaultMaxResult = 64 << 20

const (
	maxNotes    = 256              // concurrent posts of our own notifications and answers
	noteTimeout = 10 * time.Second // for one of them
)

// Conn sends calls to one extension over HTTP. It is an rpc.Caller and a jsonrpc.Starter; any number of calls may run
// concurrently, each in an HTTP request of its own. New starts nothing: calls that are started before Run wait for it.
type Conn struct {
	at       *endpoint
	notifier notifier
	log      *slog.Logger

	reopened func(result json.RawMessage) // or nil
	gap      func()                       // or nil

	mu         sync.Mutex
	pending    pendingCalls
	negotiated negotiated
	closed     *rpc.Error // set when nothing can be sent any more
	notes      int

	run   func(func(ctx context.Context)) // starts a goroutine that Run waits for; nil while Run does not run
	early []func(ctx context.Context)     // what was started before Run
	end   context.CancelCauseFunc         // ends Run
}

// New makes a Conn. If the Config cannot work, for example because its URL is invalid, Run and every call return the
// error.
func New(cfg Config) *Conn {
	c := &Conn{
		at:       newEndpoint(cfg),
		notifier: notifier{to: cfg.OnNotification},
		log:      cfg.Logger,

		reopened: cfg.OnReopened, gap: cfg.OnGap,
	}
	c.at.base = cfg.Client
	c.negotiated.dialect = cmp.Or(cfg.Dialect, manifest.Auto)
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Run performs the Conn's calls. It returns the cause when ctx ends, or an error when the session cannot continue
// because the server is reachable but refuses to open it again. Before it returns, every pending call has failed and
// the session has been ended with a DELETE. It may be called once.
func (c *Conn) Run(ctx context.Context) error {
	if c.at.bad != nil {
		c.close(c.at.bad)
		return c.at.bad
	}
	running, end := context.WithCancelCause(ctx)
	defer end(nil)
	// The connections stay open after the last call, for the DELETE of the session.
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	c.at.connect(connected)
	defer c.at.client.CloseIdleConnections()

	var wg sync.WaitGroup
	c.mu.Lock()
	c.end = end
	c.run = func(f func(context.Context)) {
		wg.Go(func() { f(running) }) // owned by Run, which waits; ends with its request, at the latest with running
	}
	for _, f := range c.early {
		c.run(f)
	}
	c.early = nil
	c.mu.Unlock()

	<-running.Done()
	err := context.Cause(running)
	c.close(err)
	wg.Wait()
	c.mu.Lock()
	s := c.negotiated.session
	c.mu.Unlock()
	if err := c.at.deleteSession(connected, s); err != nil {
		c.log.Debug("the session was not ended", "error", err)
	}
	return err
}

// close fails all pending calls, and all that are started later.
func (c *Conn) close(why error) {
	c.mu.Lock()
	c.closed = rpc.Errorf(rpc.CodeExited, rpc.RanNo, "the connection to %s is closed: %v", c.at.name, why)
	c.run, c.early = nil, nil
	lost := c.pending.clear()
	c.mu.Unlock()
	for _, pc := range lost {
		pc.x.Sink.Deliver(pc.x, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeExited, pc.ran(),
			"the connection to %s ended before the answer: %v", c.at.name, why)})
	}
}

// startLocked runs f on a goroutine of Run, now or as soon as Run runs; the caller holds mu and has checked closed.
func (c *Conn) startLocked(f func(ctx context.Context)) {
	if c.run == nil {
		c.early = append(c.early, f)
		return
	}
	c.run(f)
}

// Start sends x and returns without waiting; the result is delivered to x.Sink. x.ID stays 0: Cancel returns the id
// that was sent, and after a time-out the Conn itself sends the cancellation to the server.
func (c *Conn) Start(x *jsonrpc.Exchange) {
	c.mu.Lock()
	if closed := c.closed; closed != nil {
		c.mu.Unlock()
		x.Sink.Deliver(x, jsonrpc.Reply{Err: closed})
		return
	}
	pc := c.pending.add(x)
	c.startLocked(func(ctx context.Context) { c.perform(ctx, pc) })
	c.mu.Unlock()
}

// Cancel ends x with rpc.CodeCancelled and aborts its request. It returns false if x has already ended. If the request
// may have reached the server, id is the one that was sent, for a notifications/cancelled (in MCP a broken connection
// does not cancel a request); otherwise id is 0.
func (c *Conn) Cancel(x *jsonrpc.Exchange) (id uint64, ok bool) {
	c.mu.Lock()
	pc := c.pending.of[x]
	if pc == nil {
		c.mu.Unlock()
		return 0, false
	}
	c.pending.remove(pc)
	abort := pc.abort
	c.mu.Unlock()
	ran := pc.ran()
	if ran == rpc.RanMaybe {
		id = pc.id
	}
	if abort != nil {
		abort()
	}
	x.Sink.Deliver(x, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeCancelled, ran, "the call was cancelled")})
	return id, true
}

// Call sends a request and waits for its result, which the caller may keep. It fails with rpc.CodeTimeout when the
// deadline of ctx passes, and with rpc.CodeCancelled when ctx is cancelled.
func (c *Conn) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	result, timedOut, err := jsonrpc.Wait(ctx, c, method, params)
	c.sendCancelled(timedOut, method)
	return result, err
}

// Notify sends a notification without waiting for the server's response. It fails if the Conn is closed or too many
// notifications are being sent. Calls after notifications/initialized are not sent until the server has accepted that
// notification.
func (c *Conn) Notify(method string, params json.RawMessage) error {
	if method == cancelled && nameless(params) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, body := c.negotiated.session, jsonrpc.AppendRequest(nil, nil, method, params)
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

// nameless reports whether a notifications/cancelled names request 0, the Exchange.ID of every exchange of a Conn. It
// is not sent, since the cancellation has already been sent with the real id.
func nameless(params []byte) bool {
	at, ok := jsonrpc.Member(params, "requestId")
	return ok && string(at.In(params)) == "0"
}

// sendCancelled notifies the server that request id is cancelled. A failure is only logged. The id 0 means that the
// request was not sent, and MCP does not allow cancelling initialize. There is nothing to cancel in a ping, and some servers start
// a process for each message.
func (c *Conn) sendCancelled(id uint64, method string) {
	if id == 0 || method == "initialize" || method == "ping" {
		return
	}
	params := append(strconv.AppendUint([]byte(`{"requestId":`), id, 10), `,"reason":"timeout"}`...)
	if err := c.Notify(cancelled, params); err != nil {
		c.log.Debug("could not notify the server of a time-out", "error", err)
	}
}

// noteLocked posts a notification or an answer without waiting. It calls after, if not nil, when the server has
// accepted the message or the attempt has failed. The caller holds mu.
func (c *Conn) noteLocked(s *session, body []byte, after func(ctx context.Context)) error {
	if c.closed != nil {
		return c.closed
	}
	if c.notes >= maxNotes {
		return rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: maxNotes},
			"%s is too slow in accepting notifications: %d are being sent", c.at.name, maxNotes)
	}
	c.notes++
	c.startLocked(func(ctx context.Context) {
		err := c.at.postNote(ctx, s, body)
		if err != nil && ctx.Err() == nil {
			c.log.Debug("a notification could not be sent", "error", err)
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

// postNote posts a notification or an answer and waits until the server has accepted it.
func (e *endpoint) postNote(ctx context.Context, s *session, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	resp, err := e.do(ctx, http.MethodPost, body, s.header(bothKinds))
	if err != nil {
		return e.fault(err, rpc.RanMaybe)
	}
	defer resp.Body.Close()
	defer time.AfterFunc(drainTimeout, cancel).Stop()
	io.CopyN(io.Discard, resp.Body, 64<<10) // usually empty
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answered %s", e.name, statusLine(resp.StatusCode))
	}
	return nil
}

// notifier passes on notifications, which arrive concurrently, one at a time.
type notifier struct {
	mu sync.Mutex
	to func(method string, params []byte)
}

func (n *notifier) notification(method string, params []byte) {
	if n.to == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.to(method, params)
}
