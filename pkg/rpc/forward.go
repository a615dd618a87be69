package rpc

import (
	"context"
	"encoding/json"
)

// A Starter sends exchanges without waiting for their ends; a Conn is one.
type Starter interface {
	Start(x *Exchange)
}

// An AsyncHandler is a Handler that can also answer later, without a goroutine per request. HandleAsync
// must not block; it fills in x's Method and Params and starts x somewhere, or delivers a Reply to x.Sink
// itself. Whoever serves a Handler asks for this with a type assertion.
type AsyncHandler interface {
	Handler
	HandleAsync(r *Request, x *Exchange)
}

// A Flusher is an AsyncHandler that may be given exchanges with Hold set. Flush is called when nothing follows them
// any more; it has all written that was held.
type Flusher interface {
	AsyncHandler
	Flush()
}

// Forward is the Handler that passes every request on to c and its answer back. Over a Conn it is an
// AsyncHandler.
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
