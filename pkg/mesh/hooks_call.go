package mesh

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// The hooks around a call (docs/protocol.md, "Hooks").
const (
	beforeToolCall = "before_tool_call"
	afterToolCall  = "after_tool_call"
)

// AbortedError means that an extension stopped a call by its before_tool_call hook: the tool did not run.
type AbortedError struct {
	Tool   string // as it was called
	By     string // the extension's id
	Reason string // of the extension; may be empty
}

// Error names the extension and its reason.
func (e *AbortedError) Error() string {
	return fmt.Sprintf("%s was not called: %s has stopped it (%s)", e.Tool, e.By, cmp.Or(e.Reason, "without a reason"))
}

// withoutHooks is the context key of a call that fires no hooks.
type withoutHooks struct{}

// withoutToolHooks returns a context with which calls fire no hooks, regardless of ClientOptions.ToolHooks. The hooks of a
// Toolbox get such a context: otherwise a hook that calls a tool would be called for its own call, endlessly.
func withoutToolHooks(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutHooks{}, true)
}

// firesToolHooks reports whether a call made with ctx fires hooks.
func (c *hooks) firesToolHooks(ctx context.Context) bool {
	return c.opt.ToolHooks && c.opt.Catalog != nil && ctx.Value(withoutHooks{}) == nil
}

// toolEvent is the event of the hooks around a call.
type toolEvent struct {
	Tool      string          `json:"tool"` // registered
	Extension string          `json:"extension"`
	Arguments json.RawMessage `json:"arguments"`
	Agent     string          `json:"agent_id,omitempty"`
	Session   string          `json:"session_id,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"` // these two after the call
	Error     *rpc.Error      `json:"error,omitempty"`
}

// callHooked is callTool with the hooks around it. A hook that no extension offers costs one lookup in the catalog.
func (c *hooks) callHooked(ctx context.Context, t target, tool string, args json.RawMessage) (json.RawMessage, error) {
	if t.tool != nil {
		tool = cmp.Or(t.tool.Name, tool)
	}
	e := toolEvent{Tool: tool, Extension: t.id, Arguments: args, Agent: t.agent, Session: t.session}
	if len(c.hooked(beforeToolCall)) > 0 && jsonrpc.Valid(args) { // what is not JSON, callTool refuses
		changed, err := c.fireBefore(ctx, e)
		if err != nil {
			return nil, err
		}
		e.Arguments = changed
	}
	result, err := c.callTool(ctx, t, tool, e.Arguments)
	if len(c.hooked(afterToolCall)) > 0 && jsonrpc.Valid(e.Arguments) {
		c.fireAfter(ctx, e, result, err)
	}
	return result, err
}

// fireBefore fires before_tool_call and returns the arguments with the changes of the extensions.
func (c *hooks) fireBefore(ctx context.Context, e toolEvent) (args json.RawMessage, err error) {
	event, err := encode(e)
	if err != nil {
		return nil, fmt.Errorf("mesh: the event of %s: %w", beforeToolCall, err)
	}
	switch size, limit := c.eventSize(event); { // those that may stop the call would not get it
	case size > limit:
		return nil, rpc.NewError(rpc.CodeTooLarge, rpc.Details{Ran: rpc.RanNo, Size: size, Limit: limit},
			"%s was not called: with its arguments the event of %s is %d bytes, over the limit of %d", e.Tool, beforeToolCall, size, limit)
	case !jsonrpc.Valid(event):
		return nil, rpc.Errorf(rpc.CodeTooLarge, rpc.RanNo, "%s was not called: its arguments are nested too deep for the event of %s", e.Tool, beforeToolCall)
	}
	fired, err := c.fire(ctx, beforeToolCall, event, identity{e.Agent, e.Session})
	c.logHooks(beforeToolCall, fired.Warnings)
	if err != nil {
		return nil, outOfTime(e.Extension, ctx.Err())
	}
	if fired.Aborted {
		return nil, &AbortedError{Tool: e.Tool, By: fired.By, Reason: fired.Reason}
	}
	if bytes.Equal(fired.Event, event) { // white space and all
		return e.Arguments, nil
	}
	if changed, ok := wire.MemberOf(fired.Event, "arguments"); ok && isObject(changed) {
		return changed, nil
	}
	c.opt.Logger.Warn("hook", "hook", beforeToolCall, "error", "the arguments were overridden with something that is no object")
	return e.Arguments, nil
}

// afterLeast is the least time for after_tool_call, if the call itself has used up its time.
const afterLeast = time.Second

// fireAfter fires after_tool_call, within the time of the call, or a second.
func (c *hooks) fireAfter(ctx context.Context, e toolEvent, result json.RawMessage, failure error) {
	if e.Result = result; failure != nil {
		e.Result, e.Error = nil, rpc.AsError(failure)
	} else if len(result) == 0 {
		e.Result = json.RawMessage("null")
	}
	event, err := encode(e)
	if err != nil {
		c.opt.Logger.Warn("hook", "hook", afterToolCall, "error", err)
		return
	}
	if size, limit := c.eventSize(event); size > limit && e.Error == nil {
		c.fireAfter(ctx, e, nil, rpc.NewError(rpc.CodeTooLarge, rpc.Details{Size: size, Limit: limit}, "the result is too large for this event"))
		return
	}
	if at, ok := ctx.Deadline(); ctx.Err() != nil || ok && time.Until(at) < afterLeast {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), afterLeast)
		defer cancel()
	}
	fired, err := c.fire(ctx, afterToolCall, event, identity{e.Agent, e.Session})
	c.logHooks(afterToolCall, fired.Warnings)
	if err != nil {
		c.opt.Logger.Warn("hook", "hook", afterToolCall, "error", err)
	}
}

// eventSize returns the size of a request with an event, and the largest that can be sent.
func (c *hooks) eventSize(event json.RawMessage) (size, limit int64) {
	const request = 64 // the other members
	if limit = c.nc.MaxPayload() - wire.Headroom; limit <= 0 {
		limit = math.MaxInt64
	}
	return int64(len(event)) + request, limit
}

func (c *hooks) logHooks(hook string, warnings []HookWarning) {
	for _, w := range warnings {
		c.opt.Logger.Warn("hook", "hook", hook, "extension", w.ID, "error", w.Message)
	}
}
