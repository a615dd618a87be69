package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Toolbox is the rpc.Handler of an extension written in Go: it answers initialize, ping, tools/list, tools/<name>,
// tools/call and hooks/<name> for the tools and hooks that were added to it. Serve puts it on NATS, stdio.Serve on standard
// input and output, so one program can be both.
//
//	box := &mesh.Toolbox{Version: "1.0.0"}
//	mesh.AddTool(box, "greet", "Returns a greeting.", func(ctx context.Context, in struct {
//		Name string `json:"name"`
//	}) (string, error) {
//		return "Hello, " + in.Name + "!", nil
//	})
//
// The zero Toolbox is empty and ready for use. Add everything before serving it.
//
// The caller gets the text of a tool's error. An error that is or wraps an *rpc.Error is sent unchanged, unless it is from a
// call by a [Client].
type Toolbox struct {
	Version string // server_version in the handshake

	tools []boxTool
	hooks map[string]hookFunc
}

type hookFunc = func(ctx context.Context, event json.RawMessage) (HookResult, error)

type boxTool struct {
	Tool
	run rpc.HandlerFunc
}

// HookResult is the result of a hook. The zero value changes nothing.
type HookResult struct {
	Abort    bool            `json:"abort,omitempty"`    // stop; before_* hooks only
	Reason   string          `json:"reason,omitempty"`   // of an abort
	Override json.RawMessage `json:"override,omitempty"` // an object, merged into the event's top level
}

// AddTool adds a tool with an input schema that is derived from In, a struct (jsonschema tags describe its fields).
// Arguments are decoded strictly, at every level: an unknown or missing member is answered with CodeInvalidParams. It panics if In has no
// schema or the name is taken: both are mistakes in the program, found the first time it runs.
func AddTool[In, Out any](b *Toolbox, name, description string, f func(ctx context.Context, in In) (Out, error)) {
	schema, err := inputSchema[In]()
	if err != nil {
		panic(fmt.Sprintf("mesh: tool %s: no schema for its input: %v", name, err))
	}
	text, err := json.Marshal(schema)
	if err != nil {
		panic(fmt.Sprintf("mesh: tool %s: %v", name, err))
	}
	b.AddRaw(name, description, text, func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		in, err := decodeArguments[In](r.Params, schema)
		if err != nil {
			return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "%s: %v", name, err)
		}
		out, err := f(ctx, in)
		if err != nil {
			return nil, err
		}
		return encode(out)
	})
}

func encode(v any) (json.RawMessage, error) {
	text, err := plainjson.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding the result: %w", err)
	}
	return text, nil
}

// AddRaw adds a tool that takes its arguments (r.Params) and returns its result as raw JSON. An empty schema means any
// object. It panics if the name is taken.
func (b *Toolbox) AddRaw(name, description string, schema json.RawMessage, f rpc.HandlerFunc) {
	if b.tool(name) != nil {
		panic(fmt.Sprintf("mesh: a second tool named %q", name))
	}
	if len(schema) == 0 {
		schema = wire.EmptySchema
	}
	b.tools = append(b.tools, boxTool{Tool{Own: name, Description: description, InputSchema: schema}, f})
}

// Annotate sets a further member of a tool's descriptor, such as annotations {"readOnlyHint":true}. It panics if there is no
// such tool or the value cannot be encoded.
func (b *Toolbox) Annotate(tool, key string, value any) {
	t := b.tool(tool)
	if t == nil {
		panic(fmt.Sprintf("mesh: no tool named %q to annotate", tool))
	}
	text, err := encode(value)
	if err != nil {
		panic(fmt.Sprintf("mesh: tool %s: %v", tool, err))
	}
	t.Extra = append(t.Extra, wire.Member{Key: key, Value: text})
}

// AddHook offers a hook: f is called with the event as a JSON object. Calls that f makes with ctx fire no hooks.
func (b *Toolbox) AddHook(name string, f func(ctx context.Context, event json.RawMessage) (HookResult, error)) {
	if b.hooks == nil {
		b.hooks = map[string]hookFunc{}
	}
	b.hooks[name] = f
}

func (b *Toolbox) tool(name string) *boxTool {
	i := slices.IndexFunc(b.tools, func(t boxTool) bool { return t.Own == name })
	if i < 0 {
		return nil
	}
	return &b.tools[i]
}

// Handle implements rpc.Handler.
func (b *Toolbox) Handle(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
	result, err := b.handle(ctx, r)
	return result, wire.OfHandler(ctx, err)
}

func (b *Toolbox) handle(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
	switch {
	case r.ID == nil: // a notification that nothing here waits for
		return nil, nil
	case r.Method == "initialize":
		return b.initialize()
	case r.Method == "ping":
		return json.RawMessage("{}"), nil
	case r.Method == "tools/list":
		return slices.Concat(json.RawMessage(`{"tools":`), b.descriptors(), json.RawMessage("}")), nil
	case r.Method == "tools/call":
		name, args, err := wire.CallParams(r.Params)
		if err != nil {
			return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "%v", err)
		}
		if t := b.tool(name); t != nil { // also one named list or call, which has no short form
			q := *r
			q.Method, q.Params = "tools/"+name, args
			return t.call(ctx, &q)
		}
		return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no tool is named %.128q", name)
	}
	if name, ok := strings.CutPrefix(r.Method, "tools/"); ok {
		if t := b.tool(name); t != nil {
			return t.call(ctx, r)
		}
	}
	if name, ok := strings.CutPrefix(r.Method, "hooks/"); ok && b.hooks[name] != nil {
		result, err := b.hooks[name](withoutToolHooks(ctx), r.Params)
		if err != nil {
			return nil, err
		}
		return encode(result)
	}
	return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "method %.128q is not offered", r.Method)
}

// call runs the tool. If the tool returns method_not_found, the data are removed, because with them callers would try
// another instance.
func (t *boxTool) call(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
	result, err := t.run(ctx, r)
	err = wire.OfHandler(ctx, err)
	if e, ok := errors.AsType[*rpc.Error](err); ok && e.Code == rpc.CodeMethodNotFound {
		return nil, &rpc.Error{Code: e.Code, Message: e.Message}
	}
	return result, err
}

func (b *Toolbox) initialize() (json.RawMessage, error) {
	hooks := []string{}
	for name := range b.hooks {
		hooks = append(hooks, name)
	}
	slices.Sort(hooks)
	return encode(struct {
		ServerVersion string          `json:"server_version"`
		Tools         json.RawMessage `json:"tools"`
		Hooks         []string        `json:"hooks"`
	}{b.Version, b.descriptors(), hooks})
}

func (b *Toolbox) descriptors() json.RawMessage {
	out := []byte("[")
	for i := range b.tools {
		if i > 0 {
			out = append(out, ',')
		}
		out = b.tools[i].AppendDescriptor(out)
	}
	return append(out, ']')
}
