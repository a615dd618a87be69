package door

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// call is a request in flight that can be cancelled.
type call struct {
	client  *client
	id      string
	ctx     context.Context
	cancel  context.CancelCauseFunc
	began   time.Time
	counted bool // it counts as a call in flight
}

// enter registers a request that can be cancelled as running. It does nothing for others, and for one that is registered.
func (c *client) enter(ctx context.Context, q *request) *rpc.Error {
	if q.running != nil || !q.isCall() {
		return nil
	}
	running := &call{client: c, id: string(q.id), began: time.Now(), counted: q.method != mcp.MethodListen}
	running.ctx, running.cancel = context.WithCancelCause(ctx)
	if !running.register() {
		running.cancel(nil)
		return mcp.NewError(rpc.CodeInvalidRequest, "a request with this id is still running", nil)
	}
	if running.counted {
		c.usage.calls.Add(1)
		c.door.running.Add(1)
	}
	q.running = running
	return nil
}

// register adds r to the calls of its client, unless its id is that of another one in flight.
func (r *call) register() bool {
	c := r.client
	if c.calls == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, duplicate := c.calls[r.id]; duplicate {
		return false
	}
	c.calls[r.id] = r
	return true
}

// leave ends what enter has begun.
func (r *call) leave() {
	if r == nil {
		return
	}
	r.cancel(nil)
	if r.counted {
		r.client.usage.calls.Add(-1)
		r.client.door.running.Add(-1)
	}
	r.client.mu.Lock()
	delete(r.client.calls, r.id)
	r.client.mu.Unlock()
}

// isEnded reports that the client does not want an answer any more.
func (r *call) isEnded() bool {
	cause := context.Cause(r.ctx)
	return cause == errCancelled || cause == errClosed || cause == context.Canceled // the last is that of an HTTP request
}

// isOverloaded reports whether the client or the door has too many requests in flight.
func (c *client) isOverloaded() (limit int, yes bool) {
	if c.usage.calls.Load() > int64(c.door.opt.MaxCalls) {
		return c.door.opt.MaxCalls, true
	}
	return maxCallsOfDoor, c.door.running.Load() > maxCallsOfDoor
}

// callee is what a request is for.
type callee struct {
	noun      string // prompt or resource; "" for a tool
	name      string // as the client has written it
	id        string // of the extension; "" if it is unknown
	tool      string // as mesh.Client finds it
	item      *item  // nil if the catalog has no descriptor
	extension mesh.Extension
}

func (t *callee) isNative() bool { return t.extension.Spec == nil || t.extension.Spec.Dialect != "mcp" }

// tools are the tools as one client calls them.
type tools struct{ *client }

// callTool answers tools/call.
func (c tools) callTool(q *request) ([]byte, *rpc.Error) {
	name, err := q.params.ToolName()
	if err != nil {
		return nil, err
	}
	args, err := q.params.ToolArguments()
	if err != nil {
		return nil, err
	}
	if limit, yes := c.isOverloaded(); yes {
		return overloaded(&callee{name: name}, limit).to(q), nil
	}
	c.door.awaitReady(q.running.ctx)
	b := c.door.mesh.Load()
	unread := b == nil || !isLoaded(b.catalog) // and what it has of an earlier mesh can still be searched
	if unread && !strings.Contains(name, "/") && (name != toolSearch || !c.door.isReady()) {
		return unreachable(&callee{name: name}).to(q), nil
	}
	v := c.view.now.Load()
	if searches := wouldSearch(c.client, v, q.era); isSearchTool(name) && (searches || v.byName[name] == nil && c.view.opt.Tools != ToolsAll) { // it may have searched when the client listed it
		return c.callSearchTool(q.running, q, name, args)
	}
	t, err := c.resolve(q, name)
	if err != nil {
		return nil, err
	}
	if t.item != nil && t.item.native {
		if wrong := t.item.checkArguments(wire.WithoutMeta(objectOr(args))); wrong != nil {
			return misfit(t, wrong).to(q), nil
		}
	}
	return c.forward(q.running, q, t, args)
}

// objectOr returns args, or an empty object if there are none.
func objectOr(args []byte) []byte {
	if args == nil {
		return []byte("{}")
	}
	return args
}

// forward calls a tool on the mesh.
func (c tools) forward(running *call, q *request, t *callee, args []byte) ([]byte, *rpc.Error) {
	do := mesh.ToolCall{Tool: t.tool, Arguments: args, Meta: q.metaFor(c.client, t)}
	result, f, err := c.send(running, q, t, do)
	switch {
	case f != nil:
		return f.to(q), nil
	case err != nil:
		return nil, err
	case t.isNative() || !bytes.HasPrefix(result, []byte("{")): // a result of MCP is an object
		result = wrap(result, q.era)
	default:
		c.view.links.add(&t.extension, result)
		result = mcp.WithContent(result)
		if q.era == mcp.EraLegacy {
			result = mcp.WithoutOtherStructure(result)
		}
	}
	return q.era.Complete(mcp.OneLine(result)), nil
}

// send sends a request to the mesh and waits for the result. If the mesh has failed, it returns how; the error is the
// extension's own, or errNoAnswer.
func (c *client) send(running *call, q *request, t *callee, do mesh.ToolCall) ([]byte, *failure, *rpc.Error) {
	b, err := c.mesh(running.ctx)
	if err != nil && running.isEnded() {
		return nil, nil, errNoAnswer
	} else if err != nil {
		return nil, noMesh(t, err), nil
	}
	if running.isEnded() {
		return nil, nil, errNoAnswer
	}
	ctx := running.ctx
	if trace := cmp.Or(q.params.Meta.Trace(), q.traceparent); trace != "" {
		ctx = mesh.WithTraceparent(ctx, trace)
	}
	do.Agent, do.Session = c.agent(q), c.session
	if token, level := q.params.Meta.ProgressToken, q.logLevel(c, t); token != nil || level > 0 {
		p := &progress{token: token, level: level, send: q.notify}
		do.Progress = p.receive
		defer p.end()
	}
	result, err := b.client.Do(ctx, do)
	if running.isEnded() {
		return nil, nil, errNoAnswer
	} else if cause := context.Cause(running.ctx); err != nil && cause == errDraining {
		err = cause
	}
	if err != nil {
		f, e := c.failed(q, t, err)
		return nil, f, e
	}
	if limit := c.door.opt.MaxResult; len(result) > limit {
		return nil, tooLarge(t, len(result), limit), nil
	}
	return result, nil, nil
}

// failed is why a request has failed on the mesh, or the error with which it is answered.
func (c *client) failed(q *request, t *callee, err error) (*failure, *rpc.Error) {
	if _, gone := errors.AsType[*mesh.NotFoundError](err); gone {
		return nil, tools{c}.unknownTool(q, t.name)
	}
	if e, ok := errors.AsType[*mesh.AmbiguousError](err); ok {
		return nil, ambiguousTool(t.name, tools{c}.permittedOf(c.door.mesh.Load().catalog, e.Candidates))
	}
	if e, ok := errors.AsType[*rpc.Error](err); ok && e.Details().Kind == "" {
		return nil, ownError(e, t, q.era)
	}
	t.refresh(c.door.mesh.Load().catalog)
	now := time.Now()
	return explain(t, err, min(c.door.opt.CallTimeout, now.Sub(q.running.began)), now), nil
}

// refresh reads what the catalog has on the extension now.
func (t *callee) refresh(catalog *mesh.Catalog) {
	if e, ok := catalog.Get(t.id); ok {
		t.extension = e
	}
}

// ownError is an extension's own JSON-RPC error for a client. The modern era reserves the codes around -32000 for the
// protocol.
func ownError(e *rpc.Error, t *callee, era mcp.Era) *rpc.Error {
	switch {
	case era == mcp.EraLegacy || e.Code < -32019 || e.Code > -32000:
		return e
	case e.Code == mcp.CodeNoResource && t.noun == nounResource:
		return mcp.NewError(rpc.CodeInvalidParams, e.Message, map[string]any{"uri": t.name})
	}
	data := map[string]any{"code": int(e.Code)}
	if len(e.Data) > 0 {
		data["data"] = e.Data
	}
	return mcp.NewError(rpc.CodeInternal, e.Message, data)
}

// resolve finds a tool by its name in the view, or by any name that the catalog resolves. A tool that the view does not
// permit does not exist.
func (c tools) resolve(q *request, name string) (*callee, *rpc.Error) {
	v := c.view.now.Load()
	b := c.door.mesh.Load()
	if b == nil {
		return &callee{name: name, tool: name}, nil
	}
	if t, ok := v.byName[name]; ok {
		e, _ := b.catalog.Get(t.key.ID)
		return &callee{name: name, id: t.key.ID, tool: t.registered, item: t.item, extension: e}, nil
	}
	e, tool, err := b.catalog.Resolve(name)
	if err == nil {
		t := &callee{name: name, id: e.ID, tool: name, extension: e}
		t.item, _ = renderTool(e.Spec, tool)
		if c.permits(t, tool) {
			return t, nil
		}
		return nil, c.unknownTool(q, name)
	}
	if e, ok := errors.AsType[*mesh.AmbiguousError](err); ok {
		if permitted := c.permittedOf(b.catalog, e.Candidates); len(permitted) > 0 {
			return nil, ambiguousTool(name, permitted)
		}
	}
	id, own, ok := strings.Cut(name, "/")
	if ok && !c.door.isReady() && own != "" && wire.CheckID(id, true) == nil && !c.view.opt.isFiltered() {
		return &callee{name: name, id: id, tool: name}, nil // without a catalog the mesh may still have it
	}
	return nil, c.unknownTool(q, name)
}

// isFiltered reports whether the view hides anything.
func (o ViewOptions) isFiltered() bool { return o.ReadOnly || len(o.Only)+len(o.Exclude) > 0 }

func (c tools) permits(t *callee, tool *mesh.Tool) bool {
	if t.item != nil && tool.Name != "" {
		return c.view.opt.permits(t.item)
	}
	return !c.view.opt.ReadOnly && c.view.opt.permitsName(wire.ToolKey{ID: t.id, Tool: tool.Own}, wire.ToolName(t.id, tool.Own))
}

// permittedOf returns the names that the view permits.
func (c tools) permittedOf(catalog *mesh.Catalog, names []string) (out []string) {
	for _, name := range names {
		e, tool, ok := catalog.Tool(name)
		if !ok {
			continue
		}
		if it, _ := renderTool(e.Spec, tool); it != nil && c.view.opt.permits(it) {
			out = append(out, name)
		}
	}
	return out
}

// unknownTool is the error for a name that no tool of the view has. It suggests similar names.
func (c tools) unknownTool(q *request, name string) *rpc.Error {
	v := c.view.now.Load()
	names := make([]string, len(v.tools))
	for i, t := range v.tools {
		names[i] = t.name
	}
	near := nearest.Words(name, names)
	text := "There is no tool " + clip(name, 128) + " here."
	if len(near) > 0 {
		text += " Similar names: " + strings.Join(near, ", ") + "."
	}
	if wouldSearch(c.client, v, q.era) {
		text += " Use " + toolSearch + " to find tools."
	}
	return mcp.NewError(rpc.CodeInvalidParams, text, map[string]any{"nearest": append([]string{}, near...)})
}

func ambiguousTool(name string, candidates []string) *rpc.Error {
	text := "The name " + clip(name, 128) + " is used by several tools: call one of " + strings.Join(candidates, ", ") + "."
	return mcp.NewError(rpc.CodeInvalidParams, text, map[string]any{"candidates": candidates})
}

// asArguments accepts arguments that a model has written as a string with an object in it.
func asArguments(raw json.RawMessage) (args json.RawMessage, ok bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, true
	}
	if raw[0] == '"' {
		var text string
		if json.Unmarshal(raw, &text) != nil || !json.Valid([]byte(text)) {
			return nil, false
		}
		raw = json.RawMessage(strings.TrimSpace(text))
	}
	return raw, raw[0] == '{'
}
