package rpc

import (
	"context"
	"encoding/json"
)

// Request is a request or, with a nil ID, a notification. ID and Params are unchanged raw JSON.
type Request struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage

	// Agent and Session identify the caller, if the transport provides them; otherwise they are empty.
	Agent, Session string

	// Traceparent is the trace of the request (W3C Trace Context), as received: it is not checked, and empty if there is
	// none.
	Traceparent string

	// Notify sends a notification, such as progress, to the caller. It may be nil: use Request.Send, which drops the
	// notification then.
	Notify func(method string, params json.RawMessage) error
}

// Send sends a notification to the caller, or drops it if the transport does not support that.
func (r *Request) Send(method string, params json.RawMessage) error {
	if r.Notify == nil {
		return nil
	}
	return r.Notify(method, params)
}

// A Handler answers requests. Handle is called from many goroutines at once; ctx ends when the call is cancelled or times
// out. The result is raw JSON (nil means null). An error that is or wraps an *Error is sent unchanged, any other as
// CodeInternal. For a notification the result is dropped.
type Handler interface {
	Handle(ctx context.Context, r *Request) (json.RawMessage, error)
}

// HandlerFunc makes a Handler of a function.
type HandlerFunc func(ctx context.Context, r *Request) (json.RawMessage, error)

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, r *Request) (json.RawMessage, error) {
	return f(ctx, r)
}

// A Caller sends requests. params is raw JSON (nil leaves params out); the result is raw JSON. An error answered by the
// other side is an *Error.
type Caller interface {
	Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
}
