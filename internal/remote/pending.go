package remote

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// pendingCall is an exchange that has not ended.
type pendingCall struct {
	x        *jsonrpc.Exchange // used only by the goroutine that removes the call from the table
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
func (pc *pendingCall) ran() rpc.Ran {
	if pc.sent.Load() {
		return rpc.RanMaybe
	}
	return rpc.RanNo
}

// overdue reports whether the deadline has passed. Timers of the network may fire shortly before the context's, so it
// also compares the time.
func (pc *pendingCall) overdue(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || !pc.deadline.IsZero() && !time.Now().Before(pc.deadline)
}

// pendingCalls is the table of all calls without an answer. The goroutine that removes a call delivers its reply.
type pendingCalls struct {
	last uint64
	of   map[*jsonrpc.Exchange]*pendingCall // by exchange, since Exchange.ID is reserved for jsonrpc.Conn
}

func (t *pendingCalls) add(x *jsonrpc.Exchange) *pendingCall {
	if t.of == nil {
		t.of = map[*jsonrpc.Exchange]*pendingCall{}
	}
	t.last++
	pc := &pendingCall{x: x, id: t.last, method: x.Method, deadline: x.Deadline}
	pc.body = jsonrpc.AppendRequest(nil, strconv.AppendUint(nil, pc.id, 10), x.Method, x.Params)
	t.of[x] = pc
	return pc
}

func (t *pendingCalls) remove(pc *pendingCall) bool {
	if t.of[pc.x] != pc {
		return false
	}
	delete(t.of, pc.x)
	return true
}

func (t *pendingCalls) clear() []*pendingCall {
	all := slices.Collect(maps.Values(t.of))
	t.of = nil
	return all
}

// withID returns the call with this id, but not initialize: its answer is only usable with the headers of its response.
func (t *pendingCalls) withID(id uint64) *pendingCall {
	for _, pc := range t.of {
		if pc.id == id && pc.abort != nil && pc.method != "initialize" {
			return pc
		}
	}
	return nil
}

// begin sets pc.abort. It returns false if pc has already been cancelled.
func (t *pendingCalls) begin(pc *pendingCall, abort context.CancelFunc) bool {
	pc.abort = abort
	return t.of[pc.x] == pc
}

// finish ends pc with r. It returns false if pc has already ended.
func (c *Conn) finish(pc *pendingCall, r jsonrpc.Reply) bool {
	c.mu.Lock()
	removed := c.pending.remove(pc)
	c.mu.Unlock()
	if !removed {
		return false
	}
	if pc.method == "initialize" && r.ErrorCode() == 0 {
		c.mu.Lock()
		c.negotiated.opened(pc, &r)
		c.mu.Unlock()
	}
	pc.x.Sink.Deliver(pc.x, r)
	return true
}

// perform sends pc and delivers its answer. If the server has lost the session, the request did not run: a new session
// is opened and the request is sent again, once.
func (c *Conn) perform(running context.Context, pc *pendingCall) {
	var ctx context.Context
	var abort context.CancelFunc
	if pc.deadline.IsZero() {
		ctx, abort = context.WithCancel(running)
	} else {
		ctx, abort = context.WithDeadline(running, pc.deadline)
	}
	defer abort()
	c.mu.Lock()
	begun := c.pending.begin(pc, abort)
	c.mu.Unlock()
	if !begun {
		return
	}
	s, err := c.session(ctx, pc)
	if err == nil {
		err = c.post(ctx, pc, s)
	}
	if lost(err) {
		pc.sent.Store(false)
		if s, err = c.reopen(ctx, s); err == nil {
			err = c.post(ctx, pc, s)
		}
	}
	if err == nil || running.Err() != nil { // with the cause of its end, Run fails every call that is pending
		return
	}
	if !pc.overdue(ctx) {
		c.finish(pc, jsonrpc.Reply{Err: rpc.AsError(err)})
		return
	}
	ran := pc.ran()
	if c.finish(pc, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeTimeout, ran, "no answer to %s in time", pc.method)}) && ran == rpc.RanMaybe {
		c.sendCancelled(pc.id, pc.method)
	}
}
