package door

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// asks are the requests about prompts and resources that an extension answers.
type asks struct{ *client }

// answer forwards a request to the extension that has the prompt or the resource.
func (c asks) answer(q *request) ([]byte, *rpc.Error) {
	c.door.await(q.running.ctx, c.door.listed)
	if q.method == mcp.MethodReadResource {
		if result, ok := c.readSkill(q); ok {
			return result, nil
		}
	}
	t, params, err := c.target(q)
	if err != nil {
		return nil, err
	}
	if limit, yes := c.isOverloaded(); yes {
		q.failed = true
		return nil, overloaded(t, limit).error()
	}
	if q.method == mcp.MethodComplete && !t.extension.Spec.Server.Offers("completions") {
		return q.era.Complete([]byte(`{"completion":{"values":[]}}`)), nil
	}
	result, f, err := c.send(q.running, q, t, mesh.ToolCall{Tool: t.id, Method: q.method, Arguments: q.withMeta(params, q.metaFor(c.client, t))})
	switch {
	case f != nil:
		q.failed = true
		return nil, f.error()
	case err != nil:
		return nil, err
	}
	if result = mcp.OneLine(result); !bytes.HasPrefix(result, []byte("{")) {
		q.failed = true
		return nil, &rpc.Error{Code: rpc.CodeInternal, Message: fmt.Sprintf("The extension %s answered %s with a result that is no object.", t.id, q.method)}
	}
	switch q.method {
	case mcp.MethodReadResource:
		result = q.era.Uncacheable(result)
	case mcp.MethodGetPrompt:
		c.view.links.add(&t.extension, result)
	}
	return q.era.Complete(result), nil
}

// withMeta returns params with the members of _meta that are for the extension.
func (q *request) withMeta(params, of []byte) []byte {
	meta := &q.params.Meta
	switch {
	case of == nil && meta.Raw == nil:
		return params
	case of == nil:
		of = []byte("{}")
	}
	if meta.ProgressToken != nil {
		of, _ = jsonrpc.SetMember(of, "progressToken", []byte("1")) // it is an object
	}
	params, _ = jsonrpc.SetMember(params, "_meta", of)
	return params
}

// target finds what a request is about, and returns its params as the extension expects them.
func (c asks) target(q *request) (*callee, []byte, *rpc.Error) {
	switch q.method {
	case mcp.MethodGetPrompt:
		name, err := q.params.Text("name", q.params.Name)
		if err != nil {
			return nil, nil, err
		}
		t, own, err := c.prompt(name)
		return t, q.with("name", own), err
	case mcp.MethodReadResource:
		uri, err := q.params.Text("uri", q.params.URI)
		if err != nil {
			return nil, nil, err
		}
		t, own, err := c.resource(q.era, uri)
		return t, q.with("uri", own), err
	}
	return c.completed(q)
}

// with returns the params of a request with another text as one of the members.
func (q *request) with(member, text string) []byte {
	params, _ := jsonrpc.SetMember(q.raw, member, mcp.Quote(text)) // ParseParams has read it
	return params
}

// prompt finds a prompt of the view, and the name that its extension uses.
func (c asks) prompt(name string) (t *callee, own string, err *rpc.Error) {
	t = &callee{noun: nounPrompt, name: name}
	list := &c.view.now.Load().lists[prompts]
	if e := list.byKey[name]; e != nil {
		return t, e.key.Tool, c.locate(t, e.key.ID)
	}
	if !c.door.isReady() { // the catalog may not have been read yet
		return nil, "", unreachable(t).error()
	}
	text := "There is no prompt " + clip(name, 128) + " here."
	near := nearest.Words(name, list.keys)
	if len(near) > 0 {
		text += " Similar names: " + strings.Join(near, ", ") + "."
	}
	return nil, "", mcp.NewError(rpc.CodeInvalidParams, text, map[string]any{"nearest": append([]string{}, near...)})
}

// resource finds a resource of the view, and the URI that its extension uses.
func (c asks) resource(era mcp.Era, uri string) (t *callee, own string, err *rpc.Error) {
	t = &callee{noun: nounResource, name: uri}
	v := c.view.now.Load()
	if id, own, ok := v.owner(c.view.opt, uri); ok {
		return t, own, c.locate(t, id)
	}
	if id, ok := c.view.links.owner(v, c.view.opt, uri); ok {
		return t, uri, c.locate(t, id)
	}
	if !c.door.isReady() { // the catalog may not have been read yet
		return nil, "", unreachable(t).error()
	}
	text := "Resource not found: " + clip(uri, 256) + "."
	isOpen := func(r reader) bool { return !c.view.opt.selectsResources(r.id) }
	if len(v.readers) > 1 && slices.ContainsFunc(v.readers, isOpen) {
		text += " No extension lists it. If one has it all the same, read " + uriScheme + "<extension>/<the URI, percent-encoded>."
	}
	code := rpc.Code(rpc.CodeInvalidParams)
	if era == mcp.EraLegacy {
		code = mcp.CodeNoResource
	}
	return nil, "", mcp.NewError(code, text, map[string]any{"uri": uri})
}

// locate sets the extension of a callee.
func (c asks) locate(t *callee, id string) *rpc.Error {
	e, ok := c.door.mesh.Load().catalog.Get(id)
	if !ok || e.Spec.Server == nil { // it has just been removed
		return unreachable(t).error()
	}
	t.id, t.extension = id, e
	return nil
}

// completed finds what completion/complete is about: an argument of a prompt, or of a template.
func (c asks) completed(q *request) (t *callee, params []byte, err *rpc.Error) {
	var p struct {
		Ref      json.RawMessage `json:"ref"`
		Argument *struct {
			Name  *string `json:"name"`
			Value *string `json:"value"`
		} `json:"argument"`
	}
	var ref struct{ Type, Name, URI string }
	if json.Unmarshal(q.raw, &p) != nil || json.Unmarshal(p.Ref, &ref) != nil || p.Argument == nil || p.Argument.Name == nil || p.Argument.Value == nil {
		return nil, nil, mcp.NewError(rpc.CodeInvalidParams, "params must have ref, an object with type and name or uri, and argument, an object with the texts name and value", nil)
	}
	member, own := "name", ""
	switch ref.Type {
	case "ref/prompt":
		t, own, err = c.prompt(ref.Name)
	case "ref/resource":
		member = "uri"
		t, own, err = c.completedResource(q.era, ref.URI)
	default:
		return nil, nil, mcp.NewError(rpc.CodeInvalidParams, "params.ref.type must be ref/prompt or ref/resource", nil)
	}
	if err != nil {
		return nil, nil, err
	}
	to, ok := jsonrpc.SetMember(p.Ref, member, mcp.Quote(own))
	if ok {
		params, ok = jsonrpc.SetMember(q.raw, "ref", to)
	}
	if !ok {
		return nil, nil, mcp.NewError(rpc.CodeInvalidParams, "params.ref must be an object", nil)
	}
	return t, params, nil
}

// completedResource finds a template, or a resource, of the view.
func (c asks) completedResource(era mcp.Era, uri string) (t *callee, own string, err *rpc.Error) {
	if e := c.view.now.Load().lists[templates].byKey[uri]; e != nil {
		t = &callee{noun: nounResource, name: uri}
		return t, uri, c.locate(t, e.key.ID)
	}
	return c.resource(era, uri)
}
