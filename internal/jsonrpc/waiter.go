package jsonrpc

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// Waiter is a Sink for callers that wait for one Exchange: they start the exchange, wait for Done, and read the Result.
// Make it with NewWaiter, for one exchange.
type Waiter struct {
	done   chan struct{}
	result json.RawMessage
	err    error
}

// NewWaiter makes a Waiter.
func NewWaiter() *Waiter { return &Waiter{done: make(chan struct{})} }

// Deliver implements Sink.
func (w *Waiter) Deliver(_ *Exchange, r Reply) {
	result, err := r.Result()
	w.result, w.err = append(json.RawMessage(nil), result...), err
	close(w.done)
}

// Done is closed when the exchange has ended.
func (w *Waiter) Done() <-chan struct{} { return w.done }

// Result waits for the end and returns the answer's result, which the caller may keep, or an *Error.
func (w *Waiter) Result() (json.RawMessage, error) {
	<-w.done
	return w.result, w.err
}

// A Link sends exchanges, and ends them early; a Conn is one.
type Link interface {
	Starter
	Cancel(x *Exchange) (id uint64, ok bool)
}

// Wait sends a request over l and waits for its result, which the caller may keep. It fails with CodeTimeout when the
// deadline of ctx passes, and with CodeCancelled when ctx is cancelled. timedOut is the id of a request that was sent and
// whose time has passed, otherwise 0.
func Wait(ctx context.Context, l Link, method string, params json.RawMessage) (result json.RawMessage, timedOut uint64, err error) {
	w := NewWaiter()
	x := &Exchange{Method: method, Params: params, Sink: w}
	x.Deadline, _ = ctx.Deadline()
	l.Start(x)
	select {
	case <-w.Done():
	case <-ctx.Done():
		timedOut, _ = l.Cancel(x)
	}
	result, err = w.Result()
	if e, ok := errors.AsType[*rpc.Error](err); ok {
		d := e.Details()
		switch {
		case e.Code == rpc.CodeCancelled && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return nil, timedOut, rpc.NewError(rpc.CodeTimeout, d, "no answer to %s in time", method)
		case e.Code == rpc.CodeTimeout && d.Kind != "" && d.Ran != rpc.RanNo: // the link has noticed it first; the peer did not answer that
			return nil, x.ID(), err
		}
	}
	return result, 0, err
}
