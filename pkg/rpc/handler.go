package rpc

import (
	"context"
	"encoding/json"
)

// Request is a request or, with a nil ID, a notification. ID and Params are raw JSON, as they came.
type Request struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage

	// Agent and Session say for whom the request is made, where the transport knows; else they are empty.
	Agent, Session string

	// Traceparent is the trace that the request belongs to (W3C Trace Context), as its transport brought it: not
	// checked, and empty for none.
	Traceparent string

	// Notify sends a notification (progress, say) to whoever made the request, on the request's own way
	// back. It may be nil: use Request.Send, which drops the notification then.
	Notify func(method string, params json.RawMessage) error
}

// Send sends a notification to the requester, or drops it where the requester cannot be told.
func (r *Request) Send(method string, params json.RawMessage) error {
	if r.Notify == nil {
		return nil
	}
	return r.Notify(method, params)
}

// A Handler answers requests. Handle is called from many goroutines at once; ctx ends when the call is
// cancelled or out of time. The result is raw JSON (nil means null); an error that is or wraps *Error goes
// out as it is, any other as CodeInternal. For a notification the result is dropped.
type Handler interface {
	Handle(ctx context.Context, r *Request) (json.RawMessage, error)
}

// HandlerFunc makes a Handler of a function.
type HandlerFunc func(ctx context.Context, r *Request) (json.RawMessage, error)

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, r *Request) (json.RawMessage, error) {
	return f(ctx, r)
}

// A Caller makes requests. params is raw JSON (nil leaves params out); the result is raw JSON. An error
// answered by the other side is an *Error.
type Caller interface {
	Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
}
