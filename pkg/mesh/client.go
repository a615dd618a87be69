package mesh

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// ClientOptions are a Client's settings; the zero value works for CallExt.
type ClientOptions struct {
	Prefix  string   // of the mesh's subjects. Default "ext"
	Catalog *Catalog // names, dialects and reasons; without one, tools are named <id>/<tool> and called as tools/<tool>

	Agent, Session string // the caller: sent as Ext-Agent and Ext-Session

	Timeout   time.Duration // of calls with a context without a deadline; exact to 10 ms. Default 30 s
	WaitReady time.Duration // how long a call waits for an extension that starts or restarts. Default: as long as the call may take; < 0: not at all, as for a Catalog that nothing updates (LoadCatalog)
	NoRepeat  bool          // do not repeat calls that may have run, even if the annotations of their tools allow it
	Logger    *slog.Logger  // default: discard

	HookTimeout time.Duration // of each extension that is called for a hook. Default 5 s

	// Schemas compiles the schema of a tool's arguments into a function that checks them before they are sent: Compile of
	// package pkg/mesh/schema. If it returns an error, they are not checked. nil: only the extension checks them.
	Schemas func(text json.RawMessage) (check func(args json.RawMessage) error, err error)

	// ToolHooks makes Call and CallStream fire before_tool_call and after_tool_call (docs/protocol.md, "Hooks") around each
	// tool. It is for agents: extensions may see, change and stop their calls. An extension that calls tools should not set
	// it. It needs the Catalog, and costs nothing while no extension offers these hooks.
	ToolHooks bool
}

// Client calls tools. It needs a connection and, for calling by registered name, a Catalog. It is safe for concurrent use.
//
// A call that was refused before it ran is retried while there is time: that hides the restart of a child. A call that may
// have run is not, unless the annotations of its tool (readOnlyHint, idempotentHint) allow it. An error of the extension
// itself is final, whatever its code and data are.
//
// A handler may return the error of a call that it made, wrapped or not. Its own caller then gets CodeInternal with the text
// and no Details, because kind and ran are about another call. A handler that forwards calls, and should forward errors
// unchanged, returns the *rpc.Error in it (rpc.AsError).
type Client struct {
	nc      *nats.Conn
	opt     ClientOptions
	prefix  wire.Prefix
	traffic *natsconn.Traffic
	inbox   inbox
	guards  sync.Map // extension id → *guard
	schemas sync.Map // extension id → *checks
	hooks   *hooks
	shown   shown
	denied  atomic.Int64 // until when no instance is addressed, because NATS has denied it, in Unix nanoseconds
}

// NewClient makes a Client on nc. It starts nothing, and stays in memory until nc is closed: make one for each connection. One
// program with many conversations sets Agent and Session of each ToolCall.
func NewClient(nc *nats.Conn, opt ClientOptions) *Client {
	opt.Timeout = cmp.Or(opt.Timeout, 30*time.Second)
	opt.HookTimeout = cmp.Or(opt.HookTimeout, 5*time.Second)
	opt.WaitReady = max(0, cmp.Or(opt.WaitReady, wholeCall))
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{nc: nc, opt: opt, prefix: wire.Prefix(cmp.Or(opt.Prefix, wire.DefaultPrefix)), traffic: natsconn.TrafficOf(nc), inbox: inbox{nc: nc}}
	c.hooks, c.shown = &hooks{Client: c}, shown{opt.Catalog}
	return c
}

// Call runs a tool and returns its result, raw. tool is a registered name or <id>/<local name>, which needs no catalog; args
// is a JSON object, nil for none. Errors are *NotFoundError, *AmbiguousError, one in which errors.As finds an *rpc.Error (of
// the extension, or of the mesh with Details), *AbortedError with ToolHooks, or an error of a connection that is closed or
// draining.
func (c *Client) Call(ctx context.Context, tool string, args json.RawMessage) (json.RawMessage, error) {
	return c.Do(ctx, ToolCall{Tool: tool, Arguments: args})
}

// CallStream is Call with progress: every notification that the extension sends about this call is passed to progress,
// whole, from the calling goroutine. With a progress that is not nil, extensions that use MCP's progress are requested to
// send it. A native child sends progress only if the arguments contain _meta.progressToken.
func (c *Client) CallStream(ctx context.Context, tool string, args json.RawMessage, progress func(notification json.RawMessage)) (json.RawMessage, error) {
	return c.Do(ctx, ToolCall{Tool: tool, Arguments: args, Progress: progress})
}

// ToolCall is a call with everything that a program may pass on if it calls tools for others.
type ToolCall struct {
	Tool      string          // as in Call
	Arguments json.RawMessage // as in Call
	Progress  func(notification json.RawMessage)

	// Meta are the members of params._meta for an extension that takes tools/call: a JSON object without progressToken, or
	// nil. Other extensions do not get it.
	Meta json.RawMessage

	Agent, Session string // instead of ClientOptions, unless empty

	// Method is another method than that of a tool, as in CallExt. Then Tool is the id of the extension, Arguments are all
	// params, which have a progressToken if progress is wanted, and Meta is not used.
	Method string
}

// Do is Call and CallStream with more options.
func (c *Client) Do(ctx context.Context, call ToolCall) (json.RawMessage, error) {
	if call.Method != "" {
		return c.callMethod(ctx, call)
	}
	target, err := c.find(call.Tool)
	if err != nil {
		return nil, err
	}
	target.progress, target.meta = call.Progress, call.Meta
	target.identify(call.Agent, call.Session)
	args := call.Arguments
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	var result json.RawMessage
	if c.hooks.firesToolHooks(ctx) {
		result, err = c.hooks.callHooked(ctx, target, call.Tool, args)
	} else {
		result, err = c.callTool(ctx, target, call.Tool, args)
	}
	return result, wire.OfCall(err)
}

// callTool checks the arguments and calls the tool.
func (c *Client) callTool(ctx context.Context, target target, tool string, args json.RawMessage) (json.RawMessage, error) {
	if !jsonrpc.Valid(args) { // it could contain a method, or the name of another tool
		return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "the arguments of %s are not JSON", tool)
	}
	if target.check != nil {
		checked := args
		if target.dialect != "mcp" {
			checked = wire.WithoutMeta(args)
		}
		if err := target.check(checked); err != nil {
			return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "the arguments do not fit %s: %v", tool, err)
		}
	}
	own := target.own
	if target.dialect != "mcp" && own != "list" && own != "call" { // tools/list and tools/call are methods of their own
		return c.ask(ctx, target, "tools/"+own, args) // a native extension sends progress without a request
	}
	meta := target.meta
	if target.progress != nil {
		meta = wire.SetMember(meta, "progressToken", []byte("1"))
	}
	params := wire.AppendCallParams(make([]byte, 0, len(own)+len(args)+len(meta)+64), own, args)
	if len(meta) > 0 {
		params = append(params[:len(params)-1], `,"_meta":`...)
		params = append(append(params, meta...), '}')
	}
	return c.ask(ctx, target, "tools/call", params)
}

// CallExt sends one request to an extension by its id, without resolving a name: tools/<name>, tools/list, initialize, ping,
// hooks/<name>. With a Catalog, it uses the subject in the extension's spec.
func (c *Client) CallExt(ctx context.Context, id, method string, params json.RawMessage) (json.RawMessage, error) {
	return c.callMethod(ctx, ToolCall{Tool: id, Method: method, Arguments: params})
}

func (c *Client) callMethod(ctx context.Context, call ToolCall) (json.RawMessage, error) {
	id := call.Tool
	if err := wire.CheckID(id, true); err != nil {
		return nil, err
	}
	if len(call.Arguments) > 0 && !jsonrpc.Valid(call.Arguments) {
		return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "the params of %s are not JSON", call.Method)
	}
	t := targetByID(c, id, "")
	if e, ok := c.shown.get(id); ok {
		t = c.targetOf(e)
	}
	t.progress = call.Progress
	t.identify(call.Agent, call.Session)
	result, err := c.ask(ctx, t, call.Method, call.Arguments)
	return result, wire.OfCall(err)
}

// target is the destination of a call, and what is known about it.
type target struct {
	id, own, subject, dialect string
	instance                  string // the subject of an instance that has the tool; "": any
	direct                    string // the name of the instance that routes have chosen; "": any
	guard                     *guard
	notFound                  *NotFoundError                   // the error if nothing is subscribed, of an extension that the Catalog lacks
	known, stream             bool                             // the catalog has its features; it can stream
	passthrough               bool                             // calls carry the identity of the caller
	identity                                                   // of the caller
	meta                      json.RawMessage                  // ToolCall.Meta
	hook                      bool                             // the call fires a hook
	tool                      *Tool                            // where it is known
	check                     func(args json.RawMessage) error // nil: unchecked
	progress                  func(json.RawMessage)
	connects                  uint64 // reconnects of NATS before the last request
}

// identity is sent with calls.
type identity struct{ agent, session string }

func (c *Client) targetOf(e Extension) target {
	subject := e.Spec.Subject
	if subject == "" {
		subject = c.prefix.RPC(e.ID)
	}
	return target{
		id: e.ID, subject: subject, dialect: e.Spec.Dialect,
		known: e.Spec.Subject != "", stream: slices.Contains(e.Spec.Features, wire.FeatureStream),
		identity: identity{c.opt.Agent, c.opt.Session}, passthrough: e.Spec.Context.Passthrough,
	}
}

// to is the subject of the next request.
func (t *target) to() string {
	switch {
	case t.instance != "":
		return t.instance
	case t.direct != "":
		return t.subject + "." + t.direct
	}
	return t.subject
}

// identify replaces the caller's identity, unless the new one is empty.
func (t *target) identify(agent, session string) {
	t.agent, t.session = cmp.Or(agent, t.agent), cmp.Or(session, t.session)
}

// targetByID is the target for an extension that the Catalog lacks.
func targetByID(c *Client, id, own string) target {
	return target{id: id, own: own, subject: c.prefix.RPC(id), identity: identity{c.opt.Agent, c.opt.Session}}
}

func (c *Client) find(tool string) (target, error) {
	id, own, full := strings.Cut(tool, "/")
	full = full && own != "" && wire.CheckID(id, true) == nil
	if c.opt.Catalog != nil {
		e, t, err := c.opt.Catalog.Resolve(tool)
		if err == nil {
			at := c.targetOf(e)
			at.own, at.tool, at.check = t.Own, t, c.checkOf(e.Spec, t)
			return at, nil
		}
		// An extension that the catalog lacks may still run: the bucket may have been lost, or the registry.
		notFound, isUnknown := errors.AsType[*NotFoundError](err)
		if _, known := c.opt.Catalog.Get(id); known || !full || !isUnknown {
			return target{}, err
		}
		at := targetByID(c, id, own)
		at.notFound = notFound
		return at, nil
	}
	if !full {
		return target{}, &NotFoundError{Name: tool}
	}
	return targetByID(c, id, own), nil
}

// ask sends a request, and repeats it as long as next allows. This is the only loop that repeats calls.
func (c *Client) ask(ctx context.Context, t target, method string, params json.RawMessage) (json.RawMessage, error) {
	var r retries
	deadline, known := ctx.Deadline()
	if !known {
		deadline = time.Now().Add(c.opt.Timeout)
	}
	if t.passthrough && (t.agent != "" || t.session != "") && strings.HasPrefix(method, "tools/") && method != "tools/list" {
		params = wire.WithContext(method, t.dialect, params, t.agent, t.session)
	}
	t.guard = c.guardOf(t.id)
	for ; ; r.made++ {
		a := c.attempt(ctx, &t, &r, deadline, method, params)
		if a.err == nil {
			return a.result, nil
		}
		s := r.next(c, &t, &a)
		if s == stop || ctx.Err() != nil || !time.Now().Before(deadline) {
			return nil, r.final(c, &t, &a)
		}
		if !known { // only now: a context with a deadline costs more than most of a call
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline)
			defer cancel()
			known = true
		}
		switch s {
		case whenReady:
			if !c.waitReady(ctx, &t, r.away) {
				return nil, r.final(c, &t, &a)
			}
			r.made-- // to wait is not to try: tries are left for the return
		case afterPause:
			if !sleep(ctx, r.pause) {
				return nil, r.final(c, &t, &a)
			}
		}
	}
}

// attempt sends one request: to the instance that the routes choose, or where the choice is NATS's, to any, if the breaker
// admits it.
func (c *Client) attempt(ctx context.Context, t *target, r *retries, deadline time.Time, method string, params json.RawMessage) attempt {
	now := time.Now()
	if t.direct = c.choose(t, r, now); t.direct != "" {
		defer t.guard.routes.done(t.direct)
		return c.once(ctx, t, deadline, method, params)
	}
	token, refused := c.enter(t.guard, now)
	if refused != nil {
		return attempt{err: refused, refused: true}
	}
	a := c.once(ctx, t, deadline, method, params)
	verdict := a.verdict()
	if verdict == breaker.Failure && c.wasAway(t.connects) {
		verdict = breaker.Neutral
	}
	token.Done(verdict)
	return a
}

// deniedFor is how long no instance is addressed after NATS has denied it: an operator may give the permission.
const deniedFor = 10 * time.Minute

// choose returns the instance for the next request, "" if any instance may get it.
func (c *Client) choose(t *target, r *retries, now time.Time) string {
	if t.instance != "" || r.anyInstance || now.UnixNano() < c.denied.Load() {
		return ""
	}
	e, ok := c.shown.get(t.id)
	if !ok {
		return ""
	}
	return t.guard.routes.choose(e, func() bool { return c.opt.Catalog.Age() <= freshness }, now)
}

// suspectEvery is how often a Client reports one extension; one report makes the registry ping it.
const suspectEvery = time.Second

// suspect reports to the registry how a call ended, so that the catalog is right before heartbeats are missed.
func (c *Client) suspect(t *target, why string) {
	if c.traffic.Dialing() || !t.guard.maySuspect(time.Now()) {
		return
	}
	report := map[string]string{"id": t.id, "reason": why}
	if t.direct != "" {
		report["instance"] = t.direct
	}
	data, err := json.Marshal(report)
	if err == nil {
		err = c.nc.Publish(c.prefix.Suspect(t.id), data)
	}
	if err != nil {
		c.opt.Logger.Debug("could not report a suspect", "extension", t.id, "error", err)
	}
}

// wasAway reports whether NATS is unreachable, or was since its reconnect number connects: a missing answer is not the fault
// of the extension then.
func (c *Client) wasAway(connects uint64) bool {
	return c.traffic.Dialing() || !c.nc.IsConnected() || c.nc.Stats().Reconnects != connects
}

// wholeCall is the default of WaitReady: the deadline of the call comes first.
const wholeCall = 1000 * time.Hour

// tryAnyway is how long a call waits for the catalog alone: while no registry runs, it does not show what has returned.
const tryAnyway = 2 * time.Second

// waitReady waits until the extension is not on its way back any more, or has been away for as long as the call waits, but at
// most for tryAnyway. It returns false when ctx ends first.
func (c *Client) waitReady(ctx context.Context, t *target, away time.Time) bool {
	waitCtx, cancel := context.WithTimeout(ctx, min(time.Until(away.Add(c.maxWait(t))), tryAnyway))
	defer cancel()
	// When the wait is over, the call is tried once more.
	_ = c.opt.Catalog.WaitFor(waitCtx, func(*Catalog) bool { return !c.shown.returns(t.id) })
	return ctx.Err() == nil
}
