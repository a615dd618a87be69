package remote

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// pendingCall is an exchange that has not ended.
type pendingCall struct {
	x        *rpc.Exchange // used only by the goroutine that removes the call from the table
	id       uint64
	method   string
	deadline time.Time
	body     []byte // a copy: the transport may still read it after the exchange has ended

	abort  context.CancelFunc // cancels its request; set with mu held, nil before begin
	sent   atomic.Bool        // the request may have reached the server
	header http.Header        // of the response that contains the answer
	again  bool               // an initialize that opens a session again
}

// ran returns whether a request that will not be answered may have run.
func (f *pendingCall) ran() rpc.Ran {
	if f.sent.Load() {
		return rpc.RanMaybe
	}
	return rpc.RanNo
}

// overdue reports whether the deadline has passed. Timers of the network may fire shortly before the context's, so it
// also compares the time.
func (f *pendingCall) overdue(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || !f.deadline.IsZero() && !time.Now().Before(f.deadline)
}

// pendingCalls is the table of all calls without an answer. The goroutine that removes a call delivers its reply.
type pendingCalls struct {
	last uint64
	of   map[*rpc.Exchange]*pendingCall // by exchange, since Exchange.ID is reserved for rpc.Conn
	by   map[uint64]*pendingCall
}

func (t *pendingCalls) add(x *rpc.Exchange) *pendingCall {
	if t.of == nil {
		t.of, t.by = map[*rpc.Exchange]*pendingCall{}, map[uint64]*pendingCall{}
	}
	t.last++
	f := &pendingCall{x: x, id: t.last, method: x.Method, deadline: x.Deadline}
	f.body = rpc.AppendRequest(nil, strconv.AppendUint(nil, f.id, 10), x.Method, x.Params)
	t.of[x], t.by[f.id] = f, f
	return f
}

func (t *pendingCalls) remove(f *pendingCall) bool {
	if t.by[f.id] != f {
		return false
	}
	delete(t.by, f.id)
	delete(t.of, f.x)
	return true
}

func (t *pendingCalls) clear() []*pendingCall {
	all := make([]*pendingCall, 0, len(t.by))
	for _, f := range t.by {
		all = append(all, f)
	}
	t.of, t.by = nil, nil
	return all
}

// begin sets f.abort. It returns false if f has already been cancelled.
func (c *Conn) begin(f *pendingCall, abort context.CancelFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.abort = abort
	return c.pending.by[f.id] == f
}

// finish ends f with r. It returns false if f has already ended.
func (c *Conn) finish(f *pendingCall, r rpc.Reply) bool {
	c.mu.Lock()
	removed := c.pending.remove(f)
	c.mu.Unlock()
	if !removed {
		return false
	}
	if f.method == "initialize" && r.ErrorCode() == 0 {
		c.opened(f, &r)
	}
	f.x.Sink.Deliver(f.x, r)
	return true
}

// perform sends f and delivers its answer. If the server has lost the session, the request did not run: a new session
// is opened and the request is sent again, once.
func (c *Conn) perform(ctx context.Context, f *pendingCall) {
	var abort context.CancelFunc
	if f.deadline.IsZero() {
		ctx, abort = context.WithCancel(ctx)
	} else {
		ctx, abort = context.WithDeadline(ctx, f.deadline)
	}
	defer abort()
	if !c.begin(f, abort) {
		return
	}
	s, err := c.session(ctx, f)
	if err == nil {
		err = c.post(ctx, f, s)
	}
	if lost(err) {
		f.sent.Store(false)
		if s, err = c.reopen(ctx, s); err == nil {
			err = c.post(ctx, f, s)
		}
	}
	if err == nil {
		return
	}
	if !f.overdue(ctx) {
		c.finish(f, rpc.Reply{Err: rpc.AsError(err)})
		return
	}
	ran := f.ran()
	if c.finish(f, rpc.Reply{Err: rpc.Errorf(rpc.CodeTimeout, ran, "no answer to %s in time", f.method)}) && ran == rpc.RanMaybe {
		c.sendCancelled(f.id, f.method)
	}
}
