package rpc

import (
	"context"
	"encoding/json"
)

// A Starter sends exchanges without waiting for their replies; a Conn is one.
type Starter interface {
	Start(x *Exchange)
}

// An AsyncHandler is a Handler that can also answer later, without a goroutine per request. HandleAsync must not block;
// it fills in x's Method and Params and starts x on a connection, or delivers a Reply to x.Sink itself. A server checks
// with a type assertion whether its Handler is an AsyncHandler.
type AsyncHandler interface {
	Handler
	HandleAsync(r *Request, x *Exchange)
}

// A Flusher is an AsyncHandler that accepts exchanges with Hold set. Flush is called after the last of them, and writes
// all held exchanges.
type Flusher interface {
	AsyncHandler
	Flush()
}

// Forward returns a Handler that forwards every request to c and returns its answer. If c is a Starter, such as a Conn,
// the Handler is an AsyncHandler.
func Forward(c Caller) Handler {
	if s, ok := c.(Starter); ok {
		return forwardAsync{forward{c}, s}
	}
	return forward{c}
}

type forward struct{ c Caller }

func (f forward) Handle(ctx context.Context, r *Request) (json.RawMessage, error) {
	return f.c.Call(ctx, r.Method, r.Params)
}

type forwardAsync struct {
	forward
	s Starter
}

func (f forwardAsync) HandleAsync(r *Request, x *Exchange) {
	x.Method, x.Params = r.Method, r.Params
	f.s.Start(x)
}
