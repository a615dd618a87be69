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

// call is one call in flight at its service. For an asynchronous handler it is the whole of it: one
// allocation that is exchange, request and sink at once.
type call struct {
	jsonrpc.Exchange
	request rpc.Request
	s       *service
	at      *endpoint
	id      []byte // as the caller wrote it
	size    int64  // of the request, as it was reserved
	reply   string
	callID  string
	ended   bool        // guarded by the list's mutex
	handled bool        // guarded by it, too: its handler is waited for
	left    bool        // it has given its place back; only whoever sends the answer looks
	claimed atomic.Bool // by the one who answers it
	framing sync.Mutex  // of a stream: held where a frame is sent, and where the answer is claimed, so that it is the last

	stop context.CancelFunc // of a synchronous handler

	caller  string      // as far as its reply subject shows it, while shares are counted; guarded by the list's mutex, as is
	counted uint64      // the run of counting that it is counted in
	probed  atomic.Bool // its caller was probed

	stream    bool // the caller takes frames
	began     time.Time
	lastFrame atomic.Int64         // unix nanoseconds; 0: none sent yet
	token     string               // guarded by the node's streams
	flow      atomic.Pointer[flow] // of an answer in chunks

	prev, next *call // in the service's list
}

// handle takes one request up. It never blocks: it is called by the one goroutine of its subscription. Where more have
// arrived behind it, a handler that can hold it until they are there, too: a crowd is written with one call.
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

// maxInRow bounds how many requests are taken up, refused ones included, before what is held of them is written: in a
// flood there is always another one behind.
const maxInRow = 32

// take is handle; hold says that another one follows.
func (s *service) take(at *endpoint, req *nats.Msg, hold bool) {
	reply := req.Reply
	if reply == "" || !s.slot.node.mayAnswer(reply) {
		return
	}
	s.slot.calls.Add(1)
	at.requests.Add(1)
	data := req.Data
	env, err := jsonrpc.Scan(data)
	if err != nil {
		s.refuse(at, reply, nil, notARequest(data, err))
		return
	}
	if e := checkRequest(data, &env); e != nil {
		s.refuse(at, reply, env.ID, e)
		return
	}
	now := time.Now()
	deadline, e := s.deadline(req.Header, now)
	if e != nil {
		s.refuse(at, reply, env.ID, e)
		return
	}
	c := &call{s: s, at: at, id: env.ID, size: int64(len(data)), reply: reply, began: now}
	if len(data) > 16<<10 { // the handler may go on with another form of it: the id should not keep the whole in memory
		c.id = bytes.Clone(env.ID)
	}
	c.Deadline, c.Sink = deadline, c
	c.request = rpc.Request{ID: c.id, Method: s.methodName(&env), Params: env.Params}
	if h := req.Header; len(h) > 0 {
		c.callID = h.Get(wire.HeaderCallID)
		c.request.Agent, c.request.Session = h.Get(wire.HeaderAgent), h.Get(wire.HeaderSession)
		c.request.Traceparent = h.Get(wire.HeaderTraceparent)
		if h.Get(wire.HeaderStream) == "1" {
			c.stream = true
			if s.async == nil { // an asynchronous handler knows the caller as a ProgressSink
				c.request.Notify = c.notify
			}
		}
	}
	var ctx context.Context
	if s.async == nil { // before admit, which shows c to those who cancel
		ctx, c.stop = context.WithDeadline(s.ctx, deadline)
		ctx = wire.WithTraceparent(ctx, c.request.Traceparent)
	}
	if e := s.admit(c); e != nil {
		if c.stop != nil {
			c.stop()
		}
		s.refuse(at, reply, env.ID, e)
		return
	}
	if s.async != nil {
		c.Hold = hold
		at.held = at.held || hold
		s.async.HandleAsync(&c.request, &c.Exchange)
		s.slot.node.calls.watch(c)
		return
	}
	s.slot.node.calls.watch(c)
	if !s.calls.enterHandler(&s.handlers, c) {
		c.stop()
		c.Deliver(&c.Exchange, jsonrpc.Reply{Err: s.stopped()})
		return
	}
	go func() { // owned by Serve, which waits for handlers, until it abandons this one; ends when the handler returns
		defer c.returned()
		defer c.stop()
		result, err := jsonrpc.Protect(ctx, s.h, &c.request)
		if p, ok := err.(*jsonrpc.PanicError); ok {
			s.slot.node.opt.Logger.Error("handler panicked", "extension", s.slot.ID(), "method", p.Method, "panic", p.Value)
		}
		c.Deliver(&c.Exchange, handled(result, wire.OfHandler(ctx, err)))
	}()
}

// handled is what a synchronous handler's end comes to. An error with a kind is marked as the mesh's: out of time, a
// panic, arguments that a Toolbox does not take. The extension's own goes out as it is, and so does one that is too
// large for certain.
func handled(result json.RawMessage, err error) jsonrpc.Reply {
	if e := rpc.AsError(err); e != nil && len(e.Message)+len(e.Data) < 32<<10 && e.Details().Kind != "" {
		return jsonrpc.Reply{Err: e}
	}
	return jsonrpc.NewReply(result, err)
}

// retryAfter is the hint of an overloaded instance: calls end all the time, so soon is right.
const retryAfter = 50 * time.Millisecond

// admit takes c among the calls in flight.
func (s *service) admit(c *call) *rpc.Error {
	if s.closed.Load() {
		return s.stopped()
	}
	n := s.slot.inflight.Add(1)
	if n > int64(s.opt.MaxInflight) {
		s.slot.inflight.Add(-1)
		return rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: int64(s.opt.MaxInflight),
			RetryAfterMS: retryAfter.Milliseconds()}, "%s has %d calls in flight already", s.slot.ID(), s.opt.MaxInflight)
	}
	if reserve := s.slot.node.opt.Reserve; reserve != nil && !reserve(c.size) {
		s.slot.inflight.Add(-1)
		return rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Size: c.size, RetryAfterMS: retryAfter.Milliseconds()},
			"this host has no memory left for a request of %d bytes to %s: the requests in flight on it, and answers on their way, take it all", c.size, s.slot.ID())
	}
	if !s.calls.admit(c, n, int64(s.opt.MaxInflight)) {
		s.giveBack(c)
		return rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: int64(s.opt.MaxInflight+1) / 2,
			RetryAfterMS: retryAfter.Milliseconds()}, "this caller has half of the %d calls in flight that %s allows", s.opt.MaxInflight, s.slot.ID())
	}
	return nil
}

// stopped is the error for a call that came too late.
func (s *service) stopped() *rpc.Error {
	return rpc.NewError(rpc.CodeUnavailable, rpc.Details{Ran: rpc.RanNo, State: "draining", Reason: "this instance has stopped"},
		"%s has stopped taking calls on this instance", s.slot.ID())
}

// Deliver answers the caller and ends the call.
func (c *call) Deliver(_ *jsonrpc.Exchange, r jsonrpc.Reply) {
	if c.claim() {
		c.deliver(r)
	}
}

// claim reports whether the caller is the one who answers c.
func (c *call) claim() bool {
	if c.stream {
		c.framing.Lock()
		defer c.framing.Unlock()
	}
	return c.claimed.CompareAndSwap(false, true)
}

// abandon ends a call whose handler did not, though it was told to; false if it has.
func (c *call) abandon() bool {
	if !c.claim() {
		return false
	}
	c.deliver(jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "%s has stopped, and its handler did not return", c.s.slot.ID())})
	c.s.calls.leaveHandler(&c.s.handlers, c)
	return true
}

// returned is for a handler that has, also by runtime.Goexit, without an answer.
func (c *call) returned() {
	c.Deliver(&c.Exchange, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "the handler has ended without an answer")})
	c.s.calls.leaveHandler(&c.s.handlers, c)
}

func (c *call) deliver(r jsonrpc.Reply) {
	s := c.s
	if r.Err != nil {
		s.leave(c)
		s.refuse(c.at, c.reply, c.id, r.Err)
	} else if s.answer(c, &r) {
		return // in chunks, the last of which ends the call
	}
	s.finish(c)
}

// leave gives c's place back. That comes before its answer goes out: who calls again with the answer in hand must not
// be told that there are too many.
func (s *service) leave(c *call) {
	if !c.left {
		c.left = true
		s.calls.uncount(c)
		s.giveBack(c)
	}
}

func (s *service) giveBack(c *call) {
	s.slot.inflight.Add(-1)
	if reserve := s.slot.node.opt.Reserve; reserve != nil {
		reserve(-c.size)
	}
}

// finish takes c out of the calls that Serve waits for: its answer is out.
func (s *service) finish(c *call) {
	ended, left := s.calls.remove(c)
	if !ended {
		return
	}
	s.slot.node.calls.forget(c)
	took := time.Since(c.began)
	s.slot.counters.end(took)
	c.at.took.Add(int64(took))
	if c.stream || c.probed.Load() {
		s.slot.node.dropToken(c)
	}
	s.leave(c)
	if left == 0 {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// buffers hold replies between the splicing of the id and the connection's own copy.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// answer sends r, and reports whether it has to go out in chunks, which end the call by themselves.
func (s *service) answer(c *call, r *jsonrpc.Reply) (chunked bool) {
	if code := r.ErrorCode(); code != 0 {
		s.slot.errors.Add(1)
		s.slot.counters.own.Add(1)
		c.at.failed(fmt.Sprintf("the extension's own error %d", code))
	}
	limit := s.nc.MaxPayload() - wire.Headroom
	if size := int64(r.Size()); size > limit {
		return s.large(c, r, size, limit)
	}
	s.leave(c)
	buf := buffers.Get().(*[]byte)
	*buf = r.AppendTo((*buf)[:0], c.id)
	err := s.nc.Publish(c.reply, *buf)
	if err != nil {
		s.slot.errors.Add(1)
		s.slot.counters.refused(rpc.CodeInternal)
		c.at.failed(err.Error())
	}
	if cap(*buf) <= 64<<10 {
		buffers.Put(buf)
	}
	return false
}

// large answers with what does not fit into one message: in chunks, or with a reason.
func (s *service) large(c *call, r *jsonrpc.Reply, size, limit int64) (chunked bool) {
	details := rpc.Details{Size: size, Limit: limit}
	switch {
	case !c.stream:
		s.leave(c)
		s.refuse(c.at, c.reply, c.id, rpc.NewError(rpc.CodeTooLarge, details,
			"the answer is about %d bytes, over this server's limit of %d; ask for it as a stream (%s: 1)", size, limit, wire.HeaderStream))
		return false
	case !s.slot.node.reserve(size):
		s.leave(c)
		details.Limit = maxStreaming
		s.refuse(c.at, c.reply, c.id, rpc.NewError(rpc.CodeOverloaded, details,
			"the answer of about %d bytes would put more than %d bytes of large answers under way", size, maxStreaming))
		return false
	}
	copied := int64(0)
	if reserve := s.slot.node.opt.Reserve; reserve != nil && r.KeepCopies(c.id) {
		if copied = size; !reserve(copied) {
			s.slot.node.release(size)
			s.leave(c)
			s.refuse(c.at, c.reply, c.id, rpc.NewError(rpc.CodeOverloaded, rpc.Details{Size: size},
				"the answer of about %d bytes was discarded: answers and requests under way take all the memory that this host has for them", size))
			return false
		}
	}
	unreserve := func() {
		if copied > 0 {
			s.slot.node.opt.Reserve(-copied)
		}
	}
	if !s.calls.enter(&s.handlers) {
		unreserve()
		s.slot.node.release(size)
		s.leave(c)
		s.refuse(c.at, c.reply, c.id, rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "%s stopped before its answer was sent", s.slot.ID()))
		return false
	}
	c.flow.Store(&flow{acks: make(chan struct{}, wire.MaxUnacked), left: make(chan struct{})})
	text, letGo := r.Keep(c.id)
	if extra := int64(len(text)) - size; extra != 0 {
		s.slot.node.streams.mu.Lock()
		s.slot.node.streams.bytes += extra
		s.slot.node.streams.mu.Unlock()
	}
	go func() { // owned by Serve; ends with the answer, or the caller, or the service
		defer s.handlers.Done()
		c.sendChunks(text, func() {
			letGo()
			unreserve()
		})
	}()
	return true
}

// refuse answers with an error of the mesh's own, marked by micro's headers.
func (s *service) refuse(at *endpoint, reply string, id []byte, e *rpc.Error) {
	s.slot.errors.Add(1)
	s.slot.counters.refused(e.Code)
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
		s.slot.node.opt.Logger.Warn("could not answer a call", "extension", s.slot.ID(), "error", err)
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
	return s[:min(len(s), 256)]
}

// cancel ends the call for a caller that has gone.
func (c *call) cancel() {
	if f := c.flow.Load(); f != nil { // it has its answer, and is sending it
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

// Canceller is a jsonrpc.AsyncHandler that can take an exchange back: the bridge's, which then tells the child.
type Canceller interface {
	CancelExchange(x *jsonrpc.Exchange)
}
