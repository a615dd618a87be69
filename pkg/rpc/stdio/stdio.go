// Package stdio carries JSON-RPC 2.0 over byte streams, one message per line, as a bridge and its child processes do. An
// extension in Go is an [rpc.Handler] and one line:
//
//	err := stdio.Serve(ctx, os.Stdin, os.Stdout, handler)
//
// A [Conn] is the other side, for example in the test of an extension: it sends requests to it.
//
// Payloads are not decoded: params, results and errors are passed on as the bytes that were received, so that
// 9007199254740993, 1e400 and 1.0 arrive unchanged. Lines that are not messages, such as banners and log output, are
// ignored. A line over 64 MiB is discarded; if it is the answer to a request, the call fails with rpc.CodeTooLarge.
//
// Layer: pure (see layers_test.go).
package stdio

import (
	"context"
	"encoding/json"
	"io"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Serve answers requests from r on w until r ends or ctx does. Requests run concurrently, at most 256 at once. A
// notification notifications/cancelled {requestId} ends the context of that request, and shutdown ends Serve, as the end
// of r does. The handler receives all other notifications, one at a time; nothing else is read while it handles one.
func Serve(ctx context.Context, r io.Reader, w io.Writer, h rpc.Handler) error {
	return jsonrpc.Serve(ctx, r, w, own(h))
}

// own returns h with its errors and its progress as its caller gets them, and its panics on standard error: the error of a call that h made is not the error of
// its own call, and progress has the token of the request, or is not sent if the request has none.
func own(h rpc.Handler) rpc.Handler {
	if h == nil {
		return nil
	}
	return rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		if notify := r.Notify; notify != nil {
			r.Notify = func(method string, params json.RawMessage) error {
				if _, has := jsonrpc.Member(params, "progressToken"); method == "notifications/progress" && !has {
					token, ok := progressToken(r.Params)
					if !ok {
						return nil
					}
					params = wire.SetMember(params, "progressToken", token)
				}
				return notify(method, params)
			}
		}
		result, err := jsonrpc.ProtectLoud(ctx, h, r) // the bridge shows stderr
		return result, wire.OfHandler(ctx, err)
	})
}

// progressToken returns _meta.progressToken of a request's params.
func progressToken(params json.RawMessage) (token json.RawMessage, ok bool) {
	meta, ok := jsonrpc.Member(params, "_meta")
	if !ok {
		return nil, false
	}
	at, ok := jsonrpc.Member(meta.In(params), "progressToken")
	return at.In(meta.In(params)), ok
}

// Conn sends requests over a stream and receives the answers, in any order. It is an [rpc.Caller]. It also answers
// requests of the other side, as Serve does.
type Conn struct{ conn *jsonrpc.Conn }

// NewConn makes a Conn that reads from r and writes to w; it starts nothing. h answers the requests of the other side and
// receives its notifications. If h is nil, ping is answered with {} and everything else with rpc.CodeMethodNotFound. r
// should have SetReadDeadline or Close, so that Run can end with its context.
func NewConn(r io.Reader, w io.Writer, h rpc.Handler) *Conn {
	return &Conn{jsonrpc.NewConn(r, w, jsonrpc.Options{Handler: own(h)})}
}

// Run reads until the stream ends (then it returns nil) or ctx does, and returns when everything has stopped that it
// started. Answers that were already received are delivered; then all other calls in flight fail.
func (c *Conn) Run(ctx context.Context) error { return c.conn.Run(ctx) }

// Call sends a request and waits for its result. It fails with rpc.CodeTimeout when the deadline of ctx passes; then the other side
// gets notifications/cancelled, unless the method is initialize. It fails with rpc.CodeCancelled when ctx is cancelled.
func (c *Conn) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	return c.conn.Call(ctx, method, params)
}

// Notify sends a notification without waiting until it is written. It fails if the connection has ended or the other side
// has stopped reading.
func (c *Conn) Notify(method string, params json.RawMessage) error {
	return c.conn.Notify(method, params)
}
