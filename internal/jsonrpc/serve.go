package jsonrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// Serve answers requests from r on w until r ends or ctx does. An extension on its standard input and output is
//
//	err := jsonrpc.Serve(ctx, os.Stdin, os.Stdout, handler)
//
// Requests run concurrently. A notification notifications/cancelled {requestId} ends the context of that request, and
// shutdown ends Serve, as the end of r does. The handler receives all other notifications, one at a time; nothing else
// is read while it handles one.
func Serve(ctx context.Context, r io.Reader, w io.Writer, h rpc.Handler) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := rpc.HandlerFunc(func(ctx context.Context, q *rpc.Request) (json.RawMessage, error) {
		if q.Method == "shutdown" && q.ID == nil {
			cancel(errShutdown)
			return nil, nil
		}
		return h.Handle(ctx, q)
	})
	err := NewConn(interruptible(r), w, Options{Handler: stop}).Run(ctx)
	if err == errShutdown {
		return nil
	}
	return err
}

// interruptible returns r if a Read of it can be interrupted, and otherwise a pipe that is fed from r, so that ctx can
// end Serve. Standard input usually cannot be interrupted: it is a terminal, or a pipe that does not support deadlines.
func interruptible(r io.Reader) io.Reader {
	d, ok := r.(interface{ SetReadDeadline(time.Time) error })
	if ok && d.SetReadDeadline(time.Time{}) == nil {
		return r
	}
	if _, ok := r.(io.Closer); ok && d == nil {
		return r
	}
	out, in := io.Pipe()
	go func() { // left in its Read when Serve returns: it ends with r, or with the program
		_, err := io.Copy(in, r)
		in.CloseWithError(err)
	}()
	return out
}

var errShutdown = errors.New("shutdown was requested")

// request answers a request from the other side.
func (c *Conn) request(ctx context.Context, env *Envelope) {
	switch {
	case !ValidID(env.ID): // it is not sent back, since it may be long and the memory for queued answers is limited
		c.respond(AppendError(nil, nil, rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, `the request needs an "id": a number or a short string`)), nil)
		return
	case env.Method[0] != '"':
		c.respond(AppendError(nil, env.ID, rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, `the request's "method" is not a string`)), nil)
		return
	case c.opt.Handler == nil:
		c.refuse(env)
		return
	}
	q := &rpc.Request{ID: clone(env.ID), Method: env.MethodName(), Params: clone(env.Params), Notify: c.Notify}
	hctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	e := c.serving.add(string(q.ID), cancel)
	c.mu.Unlock()
	if e != nil {
		cancel()
		c.respond(AppendError(nil, q.ID, e), nil)
		return
	}
	c.serving.handlers.Go(func() { // owned by Run, which waits for handlers; ends when the handler returns
		defer cancel()
		result, err := Protect(hctx, c.opt.Handler, q)
		c.mu.Lock()
		delete(c.serving.cancel, string(q.ID))
		c.mu.Unlock()
		// The handler counts as running until its answer is written, so that a peer that does not read cannot make
		// answers accumulate.
		done := func() { c.serving.running-- }
		if err != nil {
			c.respond(AppendError(nil, q.ID, rpc.AsError(err)), done)
			return
		}
		c.respond(AppendResult(nil, q.ID, result), done)
	})
}

// serving is the requests of the other side that are being handled. The Conn's mutex guards it.
type serving struct {
	max      int
	running  int                           // handlers, until their answers are written
	cancel   map[string]context.CancelFunc // by id, while the handler runs
	handlers sync.WaitGroup
}

// add registers the request with this id as running, unless there are too many.
func (s *serving) add(id string, cancel context.CancelFunc) *rpc.Error {
	if s.running >= s.max {
		return rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: int64(s.max)}, "%d calls are already running", s.max)
	}
	if s.cancel[id] != nil {
		return rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, "a request with the id %s is already running", id)
	}
	s.cancel[id] = cancel
	s.running++
	return nil
}

// refuse answers a request if there is no Handler.
func (c *Conn) refuse(env *Envelope) {
	if method := env.MethodName(); method != "ping" {
		c.respond(AppendError(nil, env.ID, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "method %.128q is not offered here", method)), nil)
		return
	}
	c.respond(AppendResult(nil, env.ID, []byte("{}")), nil)
}

func (c *Conn) respond(message []byte, written func()) {
	if err := c.sendRaw(message, maxRaws, written); err != nil && written != nil {
		c.mu.Lock()
		written()
		c.mu.Unlock()
	}
}

// notification handles a message without an id.
func (c *Conn) notification(ctx context.Context, env *Envelope) {
	method := env.MethodName()
	if c.opt.Handler == nil {
		if c.opt.OnNotification != nil {
			c.opt.OnNotification(method, env.Params)
		}
		return
	}
	if method == "notifications/cancelled" {
		var p struct {
			RequestID json.RawMessage `json:"requestId"`
		}
		if json.Unmarshal(env.Params, &p) == nil {
			c.mu.Lock()
			cancel := c.serving.cancel[string(p.RequestID)]
			c.mu.Unlock()
			if cancel != nil {
				cancel()
			}
		}
		return
	}
	// On the reader's goroutine, so that notifications keep their order and many of them do not need many goroutines.
	if _, err := Protect(ctx, c.opt.Handler, &rpc.Request{Method: method, Params: clone(env.Params)}); err != nil {
		c.noiseLine(nil, fmt.Errorf("notification %s: %w", method, err))
	}
}

// Protect calls h and converts a panic to a *PanicError, so that a panic fails one call and not the program.
func Protect(ctx context.Context, h rpc.Handler, r *rpc.Request) (result json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			result, err = nil, &PanicError{Method: r.Method, Value: p, Stack: debug.Stack()}
		}
	}()
	return h.Handle(ctx, r)
}

// PanicError is the error of a call if its handler panicked; on the wire it is CodeInternal.
type PanicError struct {
	Method string
	Value  any
	Stack  []byte // of the goroutine that panicked
}

func (e *PanicError) Error() string { return fmt.Sprintf("%s panicked: %v", e.Method, e.Value) }

// Unwrap returns the error for the wire, without the panic's value, which belongs in the log.
func (e *PanicError) Unwrap() error {
	return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s panicked", e.Method)
}

// ProtectLoud is Protect, and prints a panic with its stack on standard error: the caller does not get the cause.
func ProtectLoud(ctx context.Context, h rpc.Handler, r *rpc.Request) (json.RawMessage, error) {
	result, err := Protect(ctx, h, r)
	if p, ok := errors.AsType[*PanicError](err); ok {
		fmt.Fprintf(os.Stderr, "%v\n\n%s", p, p.Stack)
	}
	return result, err
}

func clone(raw []byte) json.RawMessage {
	if raw == nil {
		return nil
	}
	return append(json.RawMessage{}, raw...)
}
