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
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// ClientOptions are a Client's settings; the zero value works for CallExt.
type ClientOptions struct {
	Prefix  Prefix   // default DefaultPrefix
	Catalog *Catalog // names and reasons; without one, tools are named <id>/<tool>

	Agent, Session string // who calls: sent as Ext-Agent and Ext-Session

	Timeout   time.Duration // of a call whose context has no deadline, kept to 10 ms. Default 30 s
	WaitReady time.Duration // how long a call waits for an extension that is on its way back. Default 1 s; < 0: not at all
	Logger    *slog.Logger  // default: discard

	HookTimeout time.Duration // of each extension that a hook asks. Default 5 s

	// Schemas compiles the schema of a tool's arguments into what checks them before they are sent: Compile of package
	// pkg/mesh/schema. An error of its own means that they are not checked. nil: the extension does it.
	Schemas func(text json.RawMessage) (check func(args json.RawMessage) error, err error)

	// ToolHooks has Call and CallStream fire before_tool_call and after_tool_call (docs/protocol.md, "Hooks") around
	// each tool: for agents, whose calls extensions may see, change and stop. An extension that calls tools of its own
	// accord leaves it off. It needs the Catalog, and costs nothing while nobody offers these hooks.
	ToolHooks bool

	LameDuck *LameDuck // of the connection; nil: stay until the server closes it
}

// Client calls tools. It needs a connection and, for calling by registered name, a Catalog. It is safe for
// use by many goroutines.
//
// A call that surely did not run is tried again while there is time: that hides the moment between two
// lives of a child. A call that may have run is not, unless its tool's annotations (readOnlyHint,
// idempotentHint) say that it may be.
//
// An error that it returns speaks of the call that it made. A handler may return it all the same, wrapped or not: it is
// the handler's own then, CodeInternal with its text and no Details. A handler that forwards calls, whose caller is to
// have the error as it was, returns the *rpc.Error in it (rpc.AsError).
type Client struct {
	nc      *nats.Conn
	opt     ClientOptions
	inbox   inbox
	forms   sync.Map // extension id → struct{}: it was found to want callForm
	guards  sync.Map // extension id → *guard
	schemas sync.Map // extension id → *checks
	offered atomic.Pointer[offeredHooks]
}

// NewClient makes a Client on nc. It starts nothing.
func NewClient(nc *nats.Conn, opt ClientOptions) *Client {
	opt.Prefix = cmp.Or(opt.Prefix, DefaultPrefix)
	opt.Timeout = cmp.Or(opt.Timeout, 30*time.Second)
	opt.HookTimeout = cmp.Or(opt.HookTimeout, DefaultHookTimeout)
	opt.WaitReady = max(0, cmp.Or(opt.WaitReady, time.Second))
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	return &Client{nc: nc, opt: opt, inbox: inbox{nc: nc}}
}

// Call runs a tool and returns its result, raw. tool is a registered name or <id>/<own name>; args is a JSON
// object, nil for none. Errors are *NotFoundError, *AmbiguousError, one in which errors.As finds an *rpc.Error (the
// extension's own, or the mesh's with its Details), *AbortedError with ToolHooks, or what the connection says when it
// is closed or draining.
func (c *Client) Call(ctx context.Context, tool string, args json.RawMessage) (json.RawMessage, error) {
	return c.CallStream(ctx, tool, args, nil)
}

// CallStream is Call with progress: every notification that the extension sends about this call is passed
// to progress, whole, from the calling goroutine. Extensions that know MCP's progress send it when args'
// params ask for it, which a non-nil progress does.
func (c *Client) CallStream(ctx context.Context, tool string, args json.RawMessage, progress func(notification json.RawMessage)) (json.RawMessage, error) {
	target, err := c.find(tool)
	if err != nil {
		return nil, err
	}
	target.progress = progress
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	var result json.RawMessage
	if c.firesToolHooks(ctx) {
		result, err = c.callHooked(ctx, target, tool, args)
	} else {
		result, err = c.callTool(ctx, target, tool, args)
	}
	return result, ofCall(err)
}

// callTool checks the arguments and asks for the tool, until somebody answers who knows it.
func (c *Client) callTool(ctx context.Context, target target, tool string, args json.RawMessage) (json.RawMessage, error) {
	if target.check != nil {
		if err := target.check(args); err != nil {
			return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "the arguments do not fit %s: %v", tool, err)
		}
	}
	result, err := c.askInForm(ctx, target, args)
	for tries := 1; refusedUnrun(&target, err) && ctx.Err() == nil && tries < c.mixedTries(target.id); tries++ {
		result, err = c.askInForm(ctx, target, args)
	}
	return result, err
}

// askInForm asks for the tool in the form that its extension wants.
func (c *Client) askInForm(ctx context.Context, target target, args json.RawMessage) (json.RawMessage, error) {
	form, other := formOf(target.dialect), callForm
	_, found := c.forms.Load(target.id)
	switch {
	case target.own == "list" || target.own == "call": // their short forms are methods of their own
		form = callForm
	case found:
		form, other = callForm, form
	}
	result, err := c.askAs(ctx, form, target, args)
	if form == other || !errors.Is(err, rpc.CodeMethodNotFound) {
		return result, err
	}
	// A foreign service may know only the other form, or no longer the one that it knew: ask once more, and remember
	// what it answers to.
	if found {
		c.forms.Delete(target.id)
	}
	again, err2 := c.askAs(ctx, other, target, args)
	if errors.Is(err2, rpc.CodeMethodNotFound) {
		return result, err
	}
	if other == callForm && answered(err2) {
		c.forms.Store(target.id, struct{}{})
	}
	return again, err2
}

func (c *Client) askAs(ctx context.Context, form toolForm, target target, args json.RawMessage) (json.RawMessage, error) {
	return c.ask(ctx, target, form.method(target.own), form.params(target.own, args, target.progress != nil))
}

// answered reports whether it was the extension that ended a call: with a result, or an error of its own.
func answered(err error) bool {
	e, ok := errors.AsType[*rpc.Error](err)
	return err == nil || ok && e.Details().Kind == ""
}

// CallExt sends one request to an extension by its id, without looking anything up: tools/<name>,
// tools/list, initialize, ping, hooks/<name>. With a Catalog, the extension's own subject prefix is used.
func (c *Client) CallExt(ctx context.Context, id, method string, params json.RawMessage) (json.RawMessage, error) {
	if err := CheckID(id, true); err != nil {
		return nil, err
	}
	t := target{id: id, subject: c.opt.Prefix.RPC(id)}
	if c.opt.Catalog != nil {
		if e, ok := c.opt.Catalog.Get(id); ok {
			t = c.targetOf(e)
		}
	}
	result, err := c.ask(ctx, t, method, params)
	return result, ofCall(err)
}

// target is where a call goes, and what the one who answers is known to be able to.
type target struct {
	id, own, subject, dialect string
	known, stream             bool                             // the catalog knows its features; it streams
	passthrough               bool                             // it wants to know who calls
	tool                      *Tool                            // where it is known
	check                     func(args json.RawMessage) error // nil: unchecked
	progress                  func(json.RawMessage)
	connects                  uint64 // how often NATS had come back when the last request was made
}

func (c *Client) targetOf(e Extension) target {
	subject := e.Spec.Subject
	if subject == "" {
		subject = c.opt.Prefix.RPC(e.ID)
	}
	return target{
		id: e.ID, subject: subject, dialect: e.Spec.Dialect,
		known: e.Spec.Subject != "", stream: slices.Contains(e.Spec.Features, FeatureStream),
		passthrough: e.Spec.Context.Passthrough && (c.opt.Agent != "" || c.opt.Session != ""),
	}
}

func (c *Client) find(tool string) (target, error) {
	if c.opt.Catalog != nil {
		e, t, err := c.opt.Catalog.Resolve(tool)
		if err != nil {
			return target{}, err
		}
		at := c.targetOf(e)
		at.own, at.tool, at.check = t.Own, t, c.checkOf(e.Spec, t)
		return at, nil
	}
	id, own, ok := strings.Cut(tool, "/")
	if !ok || CheckID(id, true) != nil || own == "" {
		return target{}, &NotFoundError{Name: tool}
	}
	return target{id: id, own: own, subject: c.opt.Prefix.RPC(id)}, nil
}

// toolForm is how an extension wants its tools called.
type toolForm int

const (
	shortForm toolForm = iota // tools/<name>, params = the arguments
	callForm                  // tools/call {name, arguments}
)

func formOf(dialect string) toolForm {
	if dialect == "mcp" {
		return callForm
	}
	return shortForm
}

func (f toolForm) method(tool string) string {
	if f == callForm {
		return "tools/call"
	}
	return "tools/" + tool
}

// params asks for progress where the form has a place for that: a native extension needs no asking.
func (f toolForm) params(tool string, args json.RawMessage, progress bool) json.RawMessage {
	if f == shortForm {
		return args
	}
	p := AppendCallParams(nil, tool, args)
	if progress {
		p = append(p[:len(p)-1], `,"_meta":{"progressToken":1}}`...)
	}
	return p
}

// ask sends a request until it ran, or may have, or there is no more to hope for.
func (c *Client) ask(ctx context.Context, t target, method string, params json.RawMessage) (json.RawMessage, error) {
	waited := false
	var away time.Time // since when nobody was there to run it: until then it may have lain with one who then died
	deadline, known := ctx.Deadline()
	if !known {
		deadline = time.Now().Add(c.opt.Timeout)
	}
	if t.passthrough && strings.HasPrefix(method, "tools/") && method != "tools/list" {
		params = WithContext(method, t.dialect, params, c.opt.Agent, c.opt.Session)
	}
	g := c.guardOf(t.id)
	for try := 0; ; try++ {
		token, refused := c.enter(g, time.Now())
		if refused != nil {
			return nil, refused
		}
		result, err := c.once(ctx, &t, deadline, method, params)
		verdict := outcome(err)
		if verdict == breaker.Failure && c.wasAway(t.connects) {
			verdict = breaker.Neutral
		}
		token.Done(verdict)
		wait, again := t.again(err, try)
		if !again || ctx.Err() != nil || !time.Now().Before(deadline) {
			return result, err
		}
		if !known { // only now: a context with a deadline costs more than most of a call
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline)
			defer cancel()
			known = true
		}
		if try == 0 && absent(err) {
			c.suspect(t.id, "no_responders")
		}
		if away.IsZero() && absent(err) {
			away = time.Now()
		}
		switch state := c.stateOf(t.id); {
		case (state == heartbeat.Restarting || state == heartbeat.Spawning) && !waited && c.opt.WaitReady > 0:
			waited = true
			c.waitReady(ctx, t.id)
		case try >= len(pauses) && !(absent(err) && c.mayReturn(t.id) && time.Since(away) < c.opt.WaitReady), !sleep(ctx, wait):
			return result, c.explain(t.id, err)
		}
	}
}

// result reads a reply.
func result(id string, m *nats.Msg) (json.RawMessage, error) {
	r, err := rpc.ParseReply(m.Data)
	if err != nil {
		if text := m.Header.Get(micro.ErrorHeader); text != "" { // a micro service that does not speak JSON-RPC errors
			return nil, &rpc.Error{Code: rpc.CodeInternal, Message: text}
		}
		return nil, rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s answered something that is no JSON-RPC response: %v", id, err)
	}
	return r.Result()
}

// suspectEvery is how often a Client complains of one extension: one word is enough for the registry to look.
const suspectEvery = time.Second

// suspect tells the registry what the call met, so that the catalog is right before the beats are missed.
func (c *Client) suspect(id, why string) {
	if !c.guardOf(id).maySuspect(time.Now()) {
		return
	}
	data, err := json.Marshal(map[string]string{"id": id, "reason": why})
	if err == nil {
		err = c.nc.Publish(c.opt.Prefix.Suspect(id), data)
	}
	if err != nil {
		c.opt.Logger.Debug("could not report a suspect", "extension", id, "error", err)
	}
}

// wasAway reports whether NATS is, or was since it had come back connects times: an answer that did not come
// says nothing about the extension then.
func (c *Client) wasAway(connects uint64) bool {
	return !c.nc.IsConnected() || c.nc.Stats().Reconnects != connects
}

func (c *Client) stateOf(id string) heartbeat.State {
	if c.opt.Catalog == nil {
		return ""
	}
	e, _ := c.opt.Catalog.Get(id)
	if e.State == nil {
		return ""
	}
	return e.State.State
}

func (c *Client) waitReady(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, c.opt.WaitReady)
	defer cancel()
	// Out of time is as good an answer as ready: the call is tried once more either way.
	_ = c.opt.Catalog.WaitFor(ctx, func(*Catalog) bool { return c.stateOf(id) == heartbeat.Ready })
}
