package jsonrpc

import "github.com/extmesh/extmesh/pkg/rpc"

// A Starter sends exchanges without waiting for their replies; a Conn is one.
type Starter interface {
	Start(x *Exchange)
}

// An AsyncHandler is a Handler that can also answer later, without a goroutine per request. HandleAsync must not block;
// it fills in x's Method and Params and starts x on a connection, or delivers a Reply to x.Sink itself. A server checks
// with a type assertion whether its Handler is an AsyncHandler.
type AsyncHandler interface {
	rpc.Handler
	HandleAsync(r *rpc.Request, x *Exchange)
}

// A Flusher is an AsyncHandler that accepts exchanges with Hold set. Flush is called after the last of them, and writes
// all held exchanges.
type Flusher interface {
	AsyncHandler
	Flush()
}
