package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// link is a connection to an extension: a jsonrpc.Conn for a child, a remote.Conn for an HTTP endpoint.
type link interface {
	rpc.Caller
	jsonrpc.Starter
	Cancel(x *jsonrpc.Exchange) (id uint64, ok bool)
	Notify(method string, params json.RawMessage) error
	Run(ctx context.Context) error
}

// forwarder is the handler of an instance during one run. It answers initialize and lists from the handshake and
// forwards everything else to the child, in the child's dialect, without a goroutine per call.
type forwarder struct {
	conn        link
	breaker     *breaker.Breaker
	handshake   atomic.Pointer[handshake]
	reopened    atomic.Pointer[json.RawMessage] // the result of initialize after a session was reopened
	progress    progress
	messages    messages
	relist      signal    // the child announced that a list has changed
	check       dueSignal // a call failed: check whether the extension still responds
	passthrough bool
	limits      limits
	remote      bool         // over HTTP
	inflight    atomic.Int64 // only counted over HTTP
	replicas    *replicaSet
	memory      *memory
	updates     *subscriptions
	noise       *noiseTail
	firstNoise  atomic.Pointer[string] // the first line before the handshake that was not a message
	credentials *credentials           // over HTTP
}

// Handle is the blocking form of HandleAsync.
func (f *forwarder) Handle(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
	w := jsonrpc.NewWaiter()
	x := &jsonrpc.Exchange{Sink: w}
	x.Deadline, _ = ctx.Deadline()
	f.HandleAsync(r, x)
	select {
	case <-w.Done():
	case <-ctx.Done():
		f.CancelExchange(x)
	}
	return w.Result()
}

// HandleAsync starts to handle r.
func (f *forwarder) HandleAsync(r *rpc.Request, x *jsonrpc.Exchange) {
	hs := f.handshake.Load()
	if name, ok := strings.CutPrefix(r.Method, "tools/"); ok && hs.dialect == manifest.MCP && name != "list" && name != "call" {
		if !hs.names[name] {
			refuseTool(x, name)
			return
		}
		r.Method, r.Params = "tools/call", wire.AppendCallParams(nil, name, r.Params)
	}
	if f.passthrough && r.Agent != "" && strings.HasPrefix(r.Method, "tools/") && r.Method != "tools/list" {
		r.Params = wire.WithContext(r.Method, string(hs.dialect), r.Params, r.Agent, r.Session)
	}
	if hs.dialect == manifest.MCP && (r.Method == "tools/call" || passedThrough(r.Method)) {
		if r.Params = withMeta(r.Params); r.Traceparent != "" {
			r.Params = wire.WithTrace(r.Params, r.Traceparent)
		}
	}
	switch method := r.Method; {
	case method == "initialize" && hs.dialect == manifest.MCP && isMCPClient(r.Params):
		x.Sink.Deliver(x, jsonrpc.NewReply(hs.raw, nil))
	case method == "initialize":
		x.Sink.Deliver(x, jsonrpc.NewReply(hs.initialize, nil))
	case method == "tools/list":
		x.Sink.Deliver(x, jsonrpc.NewReply(hs.toolsList, nil))
	case method == "ping":
		f.start(x, method, r.Params)
	case method == "tools/call":
		f.toolsCall(hs, r, x)
	case strings.HasPrefix(method, "tools/"):
		f.tool(hs, strings.TrimPrefix(method, "tools/"), r.Params, x)
	case method == "resources/subscribe" && hs.dialect == manifest.MCP && hs.sendsUpdates():
		f.subscribe(x, r.Params)
	case hs.listings[method] != nil:
		x.Sink.Deliver(x, jsonrpc.NewReply(hs.listings[method].answer, nil))
	case hs.dialect == manifest.MCP && passedThrough(method) && len(r.Params) > 0 && r.Params[0] != '{': // some servers would not answer it
		x.Sink.Deliver(x, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "params must be an object")})
	case hs.offersHook(method), hs.dialect == manifest.MCP && passedThrough(method):
		f.start(x, method, r.Params)
	default:
		x.Sink.Deliver(x, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "method %.128q is not offered", method)})
	}
}

// offersHook reports whether a method is a hook that the extension has listed. Another instance, of a higher version, may offer
// one that this one does not know.
func (hs *handshake) offersHook(method string) bool {
	hook, ok := strings.CutPrefix(method, "hooks/")
	return ok && hs.dialect == manifest.Ext && slices.Contains(hs.hooks, hook)
}

// isMCPClient reports whether the params of initialize are those of an MCP client, which gets the server's own answer. A
// registry sends the members of both dialects.
func isMCPClient(params json.RawMessage) bool {
	_, isMCP := jsonrpc.Member(params, "protocolVersion")
	_, isNative := jsonrpc.Member(params, "extension_id")
	return isMCP && !isNative
}

// Flush writes the calls that were held back to be sent together with later ones.
func (f *forwarder) Flush() {
	if c, ok := f.conn.(*jsonrpc.Conn); ok { // over HTTP nothing is held back
		c.Flush()
	}
}

// passedThrough reports whether an MCP request is forwarded unchanged. Requests that belong to one client's session
// (logging levels, the end of subscriptions) are not, because all clients share the child.
func passedThrough(method string) bool {
	switch method {
	case "resources/list", "resources/templates/list", "resources/read",
		"prompts/list", "prompts/get", "completion/complete":
		return true
	}
	return false
}

// toolsCall forwards tools/call {name, arguments, …}, or refuses a tool that the child does not list.
func (f *forwarder) toolsCall(hs *handshake, r *rpc.Request, x *jsonrpc.Exchange) {
	if hs.dialect == manifest.MCP {
		if name, ok := hs.listedTool(r.Params); ok {
			setTool(x, name)
			f.start(x, r.Method, r.Params)
			return
		}
	}
	name, args, err := wire.CallParams(r.Params)
	switch {
	case err != nil:
		x.Sink.Deliver(x, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "%v", err)})
	case hs.dialect != manifest.MCP:
		f.tool(hs, name, args, x)
	case !hs.names[name]:
		refuseTool(x, name)
	default:
		setTool(x, name)
		f.start(x, r.Method, r.Params)
	}
}

// setTool records which tool is called.
func setTool(x *jsonrpc.Exchange, name string) {
	if sink, ok := x.Sink.(serve.CallSink); ok {
		sink.SetTool(name)
	}
}

// tool calls a native child's tool with these arguments. The call is sent once: an error from the child, including
// -32601, is the response, because the tool may have run.
func (f *forwarder) tool(hs *handshake, name string, args []byte, x *jsonrpc.Exchange) {
	if !hs.names[name] {
		refuseTool(x, name)
		return
	}
	setTool(x, name)
	switch {
	case name == "call" || name == "list": // tools/call and tools/list are methods
		f.start(x, "tools/call", wire.AppendCallParams(nil, name, args))
	default:
		f.start(x, "tools/"+name, args)
	}
}

// refuseTool responds that the child has no such tool, without forwarding the call. The error is marked as certainly
// not run, because callers then retry it on an instance of another version.
func refuseTool(x *jsonrpc.Exchange, name string) {
	x.Sink.Deliver(x, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "this instance has no tool named %.128q", name)})
}

// start forwards one request.
func (f *forwarder) start(x *jsonrpc.Exchange, method string, params []byte) {
	h := f.newCall(x)
	h.Method, h.Params, h.Hold = method, params, x.Hold
	h.run()
}

// forwardedCall is an exchange with the child on behalf of outer, the caller's exchange.
type forwardedCall struct {
	jsonrpc.Exchange
	f           *forwarder
	outer       *jsonrpc.Exchange
	token       breaker.Token
	params      []byte       // Params before the progress token was replaced
	moved       bool         // it came from another replica
	copied      int64        // bytes of Params that were copied to replace the progress token
	endProgress func()       // stops the delivery of progress to the caller
	level       mcp.LogLevel // of the log messages that are delivered to the caller; 0: none
}

// shortTimeout is the time that a caller must give an extension for a time-out to count as a failure, unless the extension's own
// limit is shorter.
const shortTimeout = time.Second

// newCall returns a forwardedCall that is not visible to other goroutines until run.
func (f *forwarder) newCall(x *jsonrpc.Exchange) *forwardedCall {
	h := &forwardedCall{f: f, outer: x}
	h.Deadline, h.Sink = x.Deadline, h
	return h
}

// cancelledEarly marks an exchange as cancelled while there was no inner exchange to cancel, because the call was not
// sent yet or was moving from one replica to the next.
var cancelledEarly jsonrpc.Exchange

// run sends h, after the request for the log messages that it wants.
func (h *forwardedCall) run() {
	h.f.messages.setLevel(h)
	h.send()
}

// send sends h. From then on it can be cancelled, so the fields that CancelExchange reads must not change any more.
func (h *forwardedCall) send() {
	h.params = h.Params
	before := h.outer.Inner.Load()
	if before == &cancelledEarly || !h.outer.Inner.CompareAndSwap(before, &h.Exchange) { // cancelled before or at the same time
		h.outer.Sink.Deliver(h.outer, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeCancelled, rpc.RanNo, "the call was cancelled")})
		return
	}
	token, err := h.f.breaker.Acquire()
	if err != nil {
		if h.moveToReplica() {
			return
		}
		h.outer.Sink.Deliver(h.outer, jsonrpc.Reply{Err: breakerOpen(err)})
		return
	}
	h.token = token
	h.Params, h.endProgress = h.f.progress.register(h.Params, h.outer.Sink)
	if h.endProgress != nil {
		h.copied = int64(len(h.Params))
		if !h.f.memory.reserve(h.copied) {
			h.endProgress()
			h.token.Done(breaker.Neutral)
			h.outer.Sink.Deliver(h.outer, jsonrpc.Reply{Err: rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Size: h.copied},
				"the bridge has no buffer memory left for a call of %d bytes with a progress token", h.copied)})
			return
		}
	}
	if h.f.remote {
		h.f.inflight.Add(1)
	}
	h.f.messages.enter(h)
	h.f.conn.Start(&h.Exchange)
	if h.outer.Inner.Load() == &cancelledEarly {
		h.cancel()
	}
}

// Deliver passes the child's response to the caller.
func (h *forwardedCall) Deliver(_ *jsonrpc.Exchange, r jsonrpc.Reply) {
	if h.f.remote {
		if left := h.busyFor(r.Err); left > 0 {
			f := h.f // the timer must not keep the call in memory
			time.AfterFunc(left, func() { f.inflight.Add(-1) })
		} else {
			h.f.inflight.Add(-1)
		}
	}
	h.f.messages.leave(h, r.Err != nil && r.Err.Details().Ran != rpc.RanNo && (r.Err.Code == rpc.CodeCancelled || r.Err.Code == rpc.CodeTimeout))
	if h.endProgress != nil {
		h.endProgress()
		h.f.memory.reserve(-h.copied)
	}
	if r.Err != nil {
		h.recordFailure(r.Err)
		if r.Err.Code == rpc.CodeExited && r.Err.Details().Ran == rpc.RanNo && h.moveToReplica() {
			return
		}
	} else {
		if h.Method == "ping" { // the child is there; a tool may hang all the same
			h.token.Done(breaker.Neutral)
		} else {
			h.token.Done(breaker.Success)
			if h.f.credentials != nil {
				h.f.credentials.accepted()
			}
		}
		result, err := r.Result()
		if err == nil && h.Method == "tools/call" && h.f.handshake.Load().dialect == manifest.MCP && mcp.IsError(result) {
			setToolFailed(h.outer)
		}
		if err == nil && len(result) > h.f.limits.maxResult {
			r = jsonrpc.Reply{Err: rpc.NewError(rpc.CodeTooLarge, rpc.Details{Size: int64(len(result)), Limit: int64(h.f.limits.maxResult)},
				"the extension's answer is %d bytes, over the limit of %d", len(result), h.f.limits.maxResult)}
		}
	}
	h.outer.Sink.Deliver(h.outer, r)
}

// setToolFailed records that the result of a call states that its tool failed.
func setToolFailed(x *jsonrpc.Exchange) {
	if sink, ok := x.Sink.(serve.CallSink); ok {
		sink.SetToolFailed()
	}
}

// recordFailure updates the breaker and the health checks after a call that failed.
func (h *forwardedCall) recordFailure(e *rpc.Error) {
	outcome := breaker.Neutral
	switch e.Code {
	case rpc.CodeTimeout:
		if h.Method != "ping" && !h.isShort() {
			outcome = breaker.Failure
		}
		if e.Details().Ran != rpc.RanNo {
			h.f.notifyCancelled(h.ID(), "timeout")
		}
		h.f.check.send()
	case rpc.CodeCancelled:
		// A child that hangs does so also if all callers lose patience.
		if !h.f.remote && e.Details().Ran != rpc.RanNo && !h.Deadline.IsZero() {
			h.f.check.sendAt(h.Deadline)
		}
	case rpc.CodeExited, rpc.CodeUnavailable:
		h.f.check.send()
		if h.f.credentials != nil {
			h.f.credentials.refused(e)
		}
	}
	h.token.Done(outcome)
}

// isShort reports whether the caller waits so briefly that a time-out is no fault of the extension.
func (h *forwardedCall) isShort() bool {
	sink, ok := h.caller()
	return ok && h.Deadline.Sub(sink.Began()) < min(shortTimeout, h.f.limits.call)
}

// busyFor is how long the extension may go on with the call after its end: as long as it has for a call, if the caller has
// cancelled it.
func (h *forwardedCall) busyFor(e *rpc.Error) time.Duration {
	sink, ok := h.caller()
	if !ok || e == nil || e.Details().Ran == rpc.RanNo || e.Code != rpc.CodeCancelled || h.Method == "ping" {
		return 0
	}
	return time.Until(sink.Began().Add(h.f.limits.call))
}

// caller is the sink of the call that a caller has made.
func (h *forwardedCall) caller() (sink serve.CallSink, ok bool) {
	to := h.outer.Sink
	if s, ok := to.(*subscribing); ok {
		to = s.to
	}
	sink, ok = to.(serve.CallSink)
	return sink, ok
}

// CancelExchange ends x after its caller has stopped waiting, and notifies the child.
func (f *forwarder) CancelExchange(x *jsonrpc.Exchange) {
	for {
		inner := x.Inner.Load()
		if inner == &cancelledEarly || inner != nil && inner.Sink.(*forwardedCall).cancel() || x.Inner.CompareAndSwap(inner, &cancelledEarly) {
			return
		}
	}
}

// cancel ends the exchange with the child and notifies the child. It returns false if no exchange is active. If h was
// moved, its forwarder is not the one that received the call.
func (h *forwardedCall) cancel() bool {
	id, ok := h.f.conn.Cancel(&h.Exchange)
	if ok && id != 0 {
		h.f.notifyCancelled(id, "the caller cancelled")
	}
	return ok
}

func (f *forwarder) notifyCancelled(id uint64, why string) {
	// If the child does not read, the notification is lost together with the call.
	_ = f.conn.Notify("notifications/cancelled", json.RawMessage(fmt.Sprintf(`{"requestId":%d,"reason":%q}`, id, why)))
}

// breakerOpen returns the error for a call that the circuit breaker rejected.
func breakerOpen(err error) *rpc.Error {
	return rpc.NewError(rpc.CodeBreakerOpen, rpc.Details{Ran: rpc.RanNo, RetryAfterMS: breaker.RetryAfter(err).Milliseconds()}, "%v", err)
}
