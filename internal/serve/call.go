package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// call is one call in flight. For an asynchronous handler it is one allocation that is exchange, request and sink at once.
type call struct {
	jsonrpc.Exchange
	request rpc.Request
	s       *service
	at      *endpoint
	id      []byte // as the caller wrote it
	bytes   int64  // of the request, as they were reserved
	reply   string
	callID  string
	began   time.Time
	stop    context.CancelFunc // of a synchronous handler
	left    bool               // its place is free; used only where the answer is sent
	claimed atomic.Bool        // by the goroutine that answers it
	caller  string             // from its reply subject; set by the list of calls

	frames
	outcome
}

// frames is the state of a call with a caller that takes frames.
type frames struct {
	stream    bool                 // the caller does
	framing   sync.Mutex           // held while a frame is sent, and while the answer is claimed, which makes the answer the last message
	lastFrame atomic.Int64         // nanoseconds since began; 0: none sent yet
	token     string               // guarded by the publisher's streams
	flow      atomic.Pointer[flow] // of an answer in chunks
}

// handle handles one request. It never blocks: it is called by the one goroutine of its subscription. If more requests are
// pending, a handler that supports it holds this one until they are handled, so that all are written with one system call.
func (s *service) handle(at *endpoint, req *nats.Msg) {
	if s.gathers == nil {
		s.take(at, req, false)
		return
	}
	arrived, _, err := req.Sub.Pending() // this one is among them
	at.inRow++
	more := err == nil && arrived > 1 && at.inRow < maxInRow
	s.take(at, req, more)
	if more {
		return
	}
	at.inRow = 0
	if at.held {
		at.held = false
		s.gathers.Flush()
	}
}

// maxInRow limits how many requests, including refused ones, are handled before those that are held are written: in a flood
// there is always another one pending.
const maxInRow = 32

// take is handle; hold is set if another request follows.
func (s *service) take(at *endpoint, req *nats.Msg, hold bool) {
	reply := req.Reply
	if reply == "" || !s.inst.pub.opt.Prefix.MayAnswer(reply) {
		return
	}
	s.inst.calls.Add(1)
	at.requests.Add(1)
	data := req.Data
	env, err := jsonrpc.Scan(data)
	if err != nil {
		s.refuseRequest(at, req, &jsonrpc.Envelope{}, jsonrpc.NotARequest(data, err)) // what was read before the error is not its id
		return
	}
	if e := checkRequest(data, &env); e != nil {
		s.refuseRequest(at, req, &env, e)
		return
	}
	now := time.Now()
	deadline, e := s.deadline(req.Header, now)
	if e != nil {
		s.refuseRequest(at, req, &env, e)
		return
	}
	c := s.newCall(at, req, &env, now)
	c.Deadline = deadline
	var ctx context.Context
	if s.async == nil { // before admit, after which c can be cancelled
		ctx, c.stop = context.WithDeadline(s.ctx, deadline)
		ctx = wire.WithTraceparent(ctx, c.request.Traceparent)
	}
	if e := s.admit(c); e != nil {
		if c.stop != nil {
			c.stop()
		}
		s.refuseRequest(at, req, &env, e)
		return
	}
	if s.async != nil {
		c.Hold = hold
		at.held = at.held || hold
		s.async.HandleAsync(&c.request, &c.Exchange)
		s.inst.pub.calls.watch(c)
		return
	}
	s.inst.pub.calls.watch(c)
	go func() { // owned by Serve, which waits for the call, until it abandons it; ends when the handler returns
		defer c.returned()
		defer c.stop()
		result, err := jsonrpc.Protect(ctx, s.h, &c.request)
		if p, ok := err.(*jsonrpc.PanicError); ok {
			s.inst.pub.opt.Logger.Error("handler panicked", "extension", s.inst.ID(), "method", p.Method, "panic", p.Value, "stack", string(p.Stack))
		}
		c.Deliver(&c.Exchange, s.unlessStopped(handled(result, wire.OfHandler(ctx, err))))
	}()
}

// newCall returns the call of a request.
func (s *service) newCall(at *endpoint, req *nats.Msg, env *jsonrpc.Envelope, began time.Time) *call {
	// The headers are in memory twice: in the buffer of the message, and as text.
	c := &call{s: s, at: at, id: env.ID, bytes: 2*int64(req.Size()) - int64(len(req.Data)), reply: req.Reply, began: began}
	if len(req.Data) > 16<<10 { // the handler may go on with another form of it: the id should not keep the whole in memory
		c.id = bytes.Clone(env.ID)
	}
	c.Sink = c
	c.request = rpc.Request{ID: c.id, Method: env.MethodName(), Params: env.Params}
	if h := req.Header; len(h) > 0 {
		c.callID = h.Get(wire.HeaderCallID)
		c.request.Agent, c.request.Session = h.Get(wire.HeaderAgent), h.Get(wire.HeaderSession)
		c.request.Traceparent = h.Get(wire.HeaderTraceparent)
		if h.Get(wire.HeaderStream) == "1" {
			c.stream = true
			if s.async == nil { // an asynchronous handler uses the caller as a ProgressSink
				c.request.Notify = c.notify
			}
		}
	}
	return c
}

// handled returns the reply of a synchronous handler. An error with a kind is marked as one of the mesh: the end of the call's
// time, a panic, arguments that a Toolbox refuses. An error of the extension is sent unchanged, and so is one that is certainly
// too large.
func handled(result json.RawMessage, err error) jsonrpc.Reply {
	if e := rpc.AsError(err); e != nil && len(e.Message)+len(e.Data) < 32<<10 && e.Details().Kind != "" {
		return jsonrpc.Reply{Err: e}
	}
	return jsonrpc.NewReply(result, err)
}

// unlessStopped replaces the error "cancelled" if the end of the service has caused it: the caller has not cancelled the call.
func (s *service) unlessStopped(r jsonrpc.Reply) jsonrpc.Reply {
	if r.Err != nil && r.Err.Code == rpc.CodeCancelled && s.ctx.Err() != nil {
		r.Err = rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "%s has stopped during the call", s.inst.ID())
	}
	return r
}

// retryAfter is the hint of an overloaded instance: calls end all the time, so a short time is right.
const retryAfter = 50 * time.Millisecond

// admit adds c to the calls in flight. Nothing else is the reason of a refusal after the end.
func (s *service) admit(c *call) *rpc.Error {
	e := c.place()
	if e != nil && s.calls.isClosed() {
		return s.stopped()
	}
	return e
}

// place adds c to the calls in flight if there is room for it.
func (c *call) place() *rpc.Error {
	s := c.s
	if s.inst.inflight.Add(1) > int64(s.opt.MaxInflight) {
		s.inst.inflight.Add(-1)
		return rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: int64(s.opt.MaxInflight),
			RetryAfterMS: retryAfter.Milliseconds()}, "%s has %d calls in flight already", s.inst.ID(), s.opt.MaxInflight)
	}
	if !s.inst.pub.opt.Reserve(c.bytes) {
		s.inst.inflight.Add(-1)
		return rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Size: c.bytes, RetryAfterMS: retryAfter.Milliseconds()},
			"this host has no memory left for a request of %d bytes to %s: the requests in flight on it, and answers on their way, take it all", c.bytes, s.inst.ID())
	}
	if s.calls.add(c, s.opt.MaxInflight) {
		return nil
	}
	c.giveBack()
	return rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: int64(s.opt.MaxInflight+1) / 2,
		RetryAfterMS: retryAfter.Milliseconds()}, "this caller has half of the %d calls in flight that %s allows", s.opt.MaxInflight, s.inst.ID())
}

// stopped is the error for a call that arrives after the stop.
func (s *service) stopped() *rpc.Error {
	return rpc.NewError(rpc.CodeUnavailable, rpc.Details{Ran: rpc.RanNo, State: "draining", Reason: "this instance has stopped"},
		"%s has stopped taking calls on this instance", s.inst.ID())
}

// Deliver answers the caller and ends the call.
func (c *call) Deliver(_ *jsonrpc.Exchange, r jsonrpc.Reply) {
	if c.claim() {
		c.deliver(r)
	}
}

// claim reports whether the caller of claim may answer c: only the first one may.
func (c *call) claim() bool {
	if c.stream {
		c.framing.Lock()
		defer c.framing.Unlock()
	}
	return c.claimed.CompareAndSwap(false, true)
}

// abandon answers a call with a handler that has not returned in time; false if it was answered already.
func (c *call) abandon() bool {
	if !c.claim() {
		return false
	}
	c.deliver(jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "%s has stopped, and its handler did not return", c.s.inst.ID())})
	return true
}

// returned is called when a handler has ended, also by runtime.Goexit, without an answer.
func (c *call) returned() {
	c.Deliver(&c.Exchange, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "the handler has ended without an answer")})
}

func (c *call) deliver(r jsonrpc.Reply) {
	if r.Err != nil {
		c.leave()
		c.refuse(r.Err)
	} else if c.answer(&r) {
		return // in chunks, the last of which ends the call
	}
	c.finish()
}

// leave frees the place of c. That happens before its answer is sent: a caller that calls again when it has the answer must
// not be refused because of its own call.
func (c *call) leave() {
	s := c.s
	if !c.left {
		c.left = true
		s.calls.leave(c)
		c.giveBack()
	}
}

func (c *call) giveBack() {
	s := c.s
	s.inst.inflight.Add(-1)
	s.inst.pub.opt.Reserve(-c.bytes)
}

// finish ends c, since its answer was sent. The last step removes it from the calls that Serve waits for.
func (c *call) finish() {
	s := c.s
	callID := c.callID // which forget removes
	s.inst.pub.calls.forget(c)
	took := time.Since(c.began)
	s.inst.counters.took.Add(took)
	c.at.took.Add(int64(took))
	c.log(took, callID)
	if c.stream {
		s.inst.pub.streams.dropToken(c)
	}
	c.leave()
	if s.calls.remove(c) == 0 {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// buffers hold replies between the splicing of the id and the connection's own copy.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// answer sends r, and reports whether it is sent in chunks, after which the call ends.
func (c *call) answer(r *jsonrpc.Reply) (chunked bool) {
	s := c.s
	if c.code = r.ErrorCode(); c.code != 0 {
		s.inst.errors.Add(1)
		s.inst.counters.own.Add(1)
		c.at.failed(fmt.Sprintf("the extension's own error %d", c.code))
	} else if c.toolFailed {
		s.inst.errors.Add(1)
		s.inst.counters.tool.Add(1)
		c.at.failed("a result with isError")
	}
	limit := s.nc.MaxPayload() - wire.Headroom
	if c.stream {
		limit = min(limit, wire.ChunkedOver)
	}
	if size := int64(r.Size()); size > limit {
		return c.large(r, size, limit)
	}
	c.leave()
	buf := buffers.Get().(*[]byte)
	*buf = r.AppendTo((*buf)[:0], c.id)
	c.size = len(*buf)
	err := s.nc.Publish(c.reply, *buf)
	if err != nil {
		s.inst.errors.Add(1)
		s.inst.counters.refused(rpc.CodeInternal)
		c.at.failed(err.Error())
		c.code = rpc.CodeInternal
	}
	if cap(*buf) <= 64<<10 {
		buffers.Put(buf)
	}
	return false
}

// large sends an answer that is too large for one message: in chunks, or an error.
func (c *call) large(r *jsonrpc.Reply, size, limit int64) (chunked bool) {
	s := c.s
	details := rpc.Details{Size: size, Limit: limit}
	switch {
	case !c.stream:
		c.leave()
		c.refuse(rpc.NewError(rpc.CodeTooLarge, details,
			"the answer is about %d bytes, over this server's limit of %d; request it as a stream (%s: 1)", size, limit, wire.HeaderStream))
		return false
	case s.ctx.Err() != nil: // the service does not wait for acknowledgements any longer
		c.leave()
		c.refuse(rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "%s stopped before its answer was sent", s.inst.ID()))
		return false
	}
	copied := int64(0)
	if r.KeepCopies(c.id) { // otherwise the connection to the child has reserved the memory
		copied = size
	}
	if copied > 0 && !s.inst.pub.opt.Reserve(copied) {
		c.leave()
		c.refuse(rpc.NewError(rpc.CodeOverloaded, rpc.Details{Size: size},
			"the answer of about %d bytes was discarded: answers and requests under way take all the memory that this host has for them", size))
		return false
	}
	c.flow.Store(&flow{acks: make(chan struct{}, wire.MaxUnacked), left: make(chan struct{})})
	text, letGo := r.Keep(c.id)
	c.size = len(text)
	go c.sendChunks(text, func() { // owned by Serve, which waits for the call; ends with the answer, or the caller, or the service
		letGo()
		s.inst.pub.opt.Reserve(-copied)
	})
	return true
}

// refuse answers with an error of the mesh, marked by the headers of package micro.
func (s *service) refuse(at *endpoint, reply string, id []byte, e *rpc.Error) {
	s.inst.errors.Add(1)
	s.inst.counters.refused(e.Code)
	why := headerText(e.Message)
	at.failed(why)
	if !jsonrpc.ValidID(id) {
		id = nil
	}
	msg := nats.NewMsg(reply)
	msg.Header.Set(micro.ErrorHeader, why)
	msg.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(int(e.Code)))
	msg.Data = jsonrpc.AppendError(nil, id, e)
	err := s.nc.PublishMsg(msg)
	if err != nil {
		s.inst.pub.opt.Logger.Warn("could not answer a call", "extension", s.inst.ID(), "error", err)
	}
}

// headerText makes a message fit for a header: one line, not too long.
func headerText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), 256)], "")
}

// cancel ends a call that its caller does not wait for any longer.
func (c *call) cancel() {
	if f := c.flow.Load(); f != nil { // it has its answer and is sending it
		f.leave()
		return
	}
	if c.stop != nil {
		c.stop()
		return
	}
	if h, ok := c.s.h.(Canceller); ok {
		h.CancelExchange(&c.Exchange)
	}
}

// Canceller is a jsonrpc.AsyncHandler that can cancel an exchange: the bridge sends the cancellation to the child.
type Canceller interface {
	CancelExchange(x *jsonrpc.Exchange)
}
