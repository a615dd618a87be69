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

// flight is one exchange on its way.
type flight struct {
	x        *rpc.Exchange // only for whoever takes the flight off the table
	id       uint64
	method   string
	deadline time.Time
	body     []byte // a copy: the transport may read on after the exchange has ended

	abort  context.CancelFunc // of its request; set with the table's lock held, nil before it takes off
	sent   atomic.Bool        // the request may have reached the server
	header http.Header        // of the response that brings the answer
	again  bool               // an initialize that opens a session again
}

// ran is what may be said of a request that will not be answered.
func (f *flight) ran() rpc.Ran {
	if f.sent.Load() {
		return rpc.RanMaybe
	}
	return rpc.RanNo
}

// overdue reports whether the deadline has passed. The network's own timers run down a moment before the
// context's, so the clock is asked too.
func (f *flight) overdue(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || !f.deadline.IsZero() && !time.Now().Before(f.deadline)
}

// flights is the table of what waits for an answer. Whoever takes a flight off it delivers it.
type flights struct {
	last uint64
	of   map[*rpc.Exchange]*flight // an Exchange's own id is rpc.Conn's to give
	by   map[uint64]*flight
}

func (t *flights) add(x *rpc.Exchange) *flight {
	if t.of == nil {
		t.of, t.by = map[*rpc.Exchange]*flight{}, map[uint64]*flight{}
	}
	t.last++
	f := &flight{x: x, id: t.last, method: x.Method, deadline: x.Deadline}
	f.body = rpc.AppendRequest(nil, strconv.AppendUint(nil, f.id, 10), x.Method, x.Params)
	t.of[x], t.by[f.id] = f, f
	return f
}

func (t *flights) take(f *flight) bool {
	if t.by[f.id] != f {
		return false
	}
	delete(t.by, f.id)
	delete(t.of, f.x)
	return true
}

func (t *flights) clear() []*flight {
	all := make([]*flight, 0, len(t.by))
	for _, f := range t.by {
		all = append(all, f)
	}
	t.of, t.by = nil, nil
	return all
}

// board lets f take off, unless it has been cancelled before.
func (c *Conn) board(f *flight, abort context.CancelFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.abort = abort
	return c.flights.by[f.id] == f
}

// finish ends f with r, and reports false if it has ended before.
func (c *Conn) finish(f *flight, r rpc.Reply) bool {
	c.mu.Lock()
	taken := c.flights.take(f)
	c.mu.Unlock()
	if !taken {
		return false
	}
	if f.method == "initialize" && r.ErrorCode() == 0 {
		c.opened(f, &r)
	}
	f.x.Sink.Deliver(f.x, r)
	return true
}

// fly carries f to the server and its answer back. A session that the server has lost is opened again, and the
// request sent once more: it did not run.
func (c *Conn) fly(ctx context.Context, f *flight) {
	var abort context.CancelFunc
	if f.deadline.IsZero() {
		ctx, abort = context.WithCancel(ctx)
	} else {
		ctx, abort = context.WithDeadline(ctx, f.deadline)
	}
	defer abort()
	if !c.board(f, abort) {
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
		c.tellCancelled(f.id, f.method)
	}
}
