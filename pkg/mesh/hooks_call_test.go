package mesh

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// hookedMesh serves an extension target with the tool echo, and each of boxes under its name; all of it is in the
// catalog.
func hookedMesh(t *testing.T, boxes map[string]*Toolbox) func(ClientOptions) *Client {
	t.Helper()
	b := newCatalogBed(t)
	b.bucket()
	target := &Toolbox{Version: "1.0.0"}
	target.AddRaw("echo", "", json.RawMessage(`{"type":"object","properties":{"n":{"type":"number"}}}`), func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		if strings.Contains(string(r.Params), "bad") {
			return nil, &rpc.Error{Code: -7, Message: "no good"}
		}
		return r.Params, nil
	})
	nc := b.connect()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	put := func(id string, box *Toolbox) {
		wg.Go(func() { // ends with ctx
			if err := Serve(ctx, nc, Service{ID: id, Version: "1.0.0", Handler: box}); err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
		spec := wire.Spec{ID: id, Version: "1.0.0", Dialect: "ext", Subject: "ext." + id + ".rpc"}
		for _, tool := range box.tools {
			tool.Name = "ext_" + id + "_" + tool.Own
			spec.Tools = append(spec.Tools, tool.Tool)
		}
		for hook := range box.hooks {
			spec.Hooks = append(spec.Hooks, hook)
		}
		b.put("spec."+id, spec)
		c := NewClient(b.nc, ClientOptions{})
		natstest.Eventually(t, id+" answers", func() bool { _, err := c.CallExt(ctx, id, "ping", nil); return err == nil })
	}
	put("target", target)
	for id, box := range boxes {
		put(id, box)
	}
	catalog, err := LoadCatalog(ctx, b.nc, CatalogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func(o ClientOptions) *Client {
		o.Catalog, o.HookTimeout = catalog, cmp.Or(o.HookTimeout, time.Minute)
		return NewClient(b.nc, o)
	}
}

// hookBox offers hooks that store their events and answer with f.
func hookBox(told *sync.Map, f hookFunc) *Toolbox {
	box := &Toolbox{Version: "1.0.0"}
	for _, hook := range []string{beforeToolCall, afterToolCall} {
		box.AddHook(hook, func(ctx context.Context, event json.RawMessage) (HookResult, error) {
			told.Store(hook, string(event))
			return f(ctx, event)
		})
	}
	return box
}

func TestToolHooks(t *testing.T) {
	var told sync.Map
	mesh := hookedMesh(t, map[string]*Toolbox{"guard": hookBox(&told, func(_ context.Context, event json.RawMessage) (HookResult, error) {
		switch text := string(event); {
		case strings.Contains(text, `"result"`):
			return HookResult{Override: json.RawMessage(`{"result":"forged"}`)}, nil
		case strings.Contains(text, "secret"):
			return HookResult{Abort: true, Reason: "no secrets"}, nil
		case strings.Contains(text, "more"):
			return HookResult{Override: json.RawMessage(`{"arguments":{"n":2.0}}`)}, nil
		case strings.Contains(text, "wrong"):
			return HookResult{Override: json.RawMessage(`{"arguments":{"n":"two"}}`)}, nil
		case strings.Contains(text, "silly"):
			return HookResult{Override: json.RawMessage(`{"arguments":[]}`)}, nil
		}
		return HookResult{}, nil
	})})
	c := mesh(ClientOptions{ToolHooks: true, Agent: "bot", Session: "s1", Schemas: twos})
	for _, tt := range []struct{ args, want, before, after string }{
		{`{"n": 1.0}`, `{"n": 1.0}`, `{"tool":"ext_target_echo","extension":"target","arguments":{"n":1.0},"agent_id":"bot","session_id":"s1"}`,
			`{"tool":"ext_target_echo","extension":"target","arguments":{"n":1.0},"agent_id":"bot","session_id":"s1","result":{"n":1.0}}`},
		{`{"x":"more"}`, `{"n":2.0}`, `"arguments":{"x":"more"}`, `"arguments":{"n":2.0},"agent_id":"bot","session_id":"s1","result":{"n":2.0}}`},
		{`{"x":"silly"}`, `{"x":"silly"}`, `silly`, `"result":{"x":"silly"}`},
		{`{"x":"bad"}`, ``, `bad`, `"error":{"code":-7,"message":"no good"}}`},
		{`{"x":"wrong"}`, ``, `wrong`, `"error":{"code":-32602`},
	} {
		got, err := c.Call(t.Context(), "target/echo", json.RawMessage(tt.args))
		if string(got) != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %s, %v, want %s", tt.args, got, err, tt.want)
		}
		before, _ := told.LoadAndDelete(beforeToolCall)
		after, _ := told.LoadAndDelete(afterToolCall)
		if b, _ := before.(string); !strings.Contains(b, tt.before) {
			t.Errorf("%s: before it was told\n%v, want\n%s", tt.args, before, tt.before)
		}
		if a, _ := after.(string); !strings.Contains(a, tt.after) {
			t.Errorf("%s: after it was told\n%v, want\n%s", tt.args, after, tt.after)
		}
	}

	_, err := c.Call(t.Context(), "ext_target_echo", json.RawMessage(`{"x":"secret"}`))
	aborted, ok := errors.AsType[*AbortedError](err)
	if !ok || *aborted != (AbortedError{Tool: "ext_target_echo", By: "guard", Reason: "no secrets"}) {
		t.Errorf("aborted: %v", err)
	}
	if after, ok := told.Load(afterToolCall); ok {
		t.Errorf("after a call that was not made: %v", after)
	}

	told.Clear()
	if _, err := mesh(ClientOptions{}).Call(t.Context(), "target/echo", json.RawMessage(`{"x":"secret"}`)); err != nil {
		t.Errorf("a client that fires no hooks: %v", err)
	}
	if _, err := c.Call(withoutToolHooks(t.Context()), "target/echo", json.RawMessage(`{"x":"secret"}`)); err != nil {
		t.Errorf("a call that fires no hooks: %v", err)
	}
	if _, asked := told.Load(beforeToolCall); asked {
		t.Error("a hook was asked all the same")
	}
}

// TestToolHooksOfLargeCalls: a call is not made if its event is too large for the extensions that could stop it. An event about a
// result that is too large has an error in its place. Both events have the identity of the call.
func TestToolHooksOfLargeCalls(t *testing.T) {
	told, agents := "", ""
	guard := &Toolbox{Version: "1.0.0"}
	for _, hook := range []string{beforeToolCall, afterToolCall} {
		guard.AddHook(hook, func(_ context.Context, event json.RawMessage) (HookResult, error) {
			told = string(event)
			return HookResult{}, nil
		})
	}
	c := hookedMesh(t, map[string]*Toolbox{"guard": guard})(ClientOptions{ToolHooks: true, Agent: "gateway"})
	sub, err := c.nc.SubscribeSync("ext.guard.rpc")
	if err != nil {
		t.Fatal(err)
	}
	limit := int(c.nc.MaxPayload()) - wire.Headroom
	deep, nested := "", func(n int) string { return `{"x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}` }
	for n := 1; jsonrpc.Valid([]byte(nested(n))); n++ {
		deep = nested(n)
	}
	for name, args := range map[string]string{
		"large": `{"x":"` + strings.Repeat("x", limit-100) + `"}`,
		"deep":  deep,
	} {
		if _, err := c.Call(t.Context(), "target/echo", json.RawMessage(args)); !errors.Is(err, rpc.CodeTooLarge) || rpc.AsError(err).Details().Ran != rpc.RanNo || told != "" {
			t.Errorf("%s: %.200v, %.200s", name, err, told)
		}
	}
	half := `{"x":"` + strings.Repeat("x", limit*2/3) + `"}`
	if got, err := c.Do(t.Context(), ToolCall{Tool: "target/echo", Arguments: json.RawMessage(half), Agent: "alice"}); err != nil || string(got) != half {
		t.Fatalf("%v", err)
	}
	if !strings.Contains(told, `"error":{"code":-32006`) || strings.Contains(told, `"result"`) {
		t.Errorf("after a large result it was told %.100s … %s", told, told[max(0, len(told)-300):])
	}
	for range 2 {
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		agents += m.Header.Get(wire.HeaderAgent) + " "
	}
	if agents != "alice alice " {
		t.Errorf("the agents of the hooks are %s", agents)
	}
}

// TestToolHooksOfHooks has a hook that calls a tool itself, with a client that fires hooks: the hook is not called for its
// own call.
func TestToolHooksOfHooks(t *testing.T) {
	var told sync.Map
	var asked atomic.Int64
	var c *Client
	mesh := hookedMesh(t, map[string]*Toolbox{"guard": hookBox(&told, func(ctx context.Context, _ json.RawMessage) (HookResult, error) {
		if asked.Add(1) < 10 {
			if _, err := c.Call(ctx, "target/echo", nil); err != nil {
				t.Errorf("the hook's own call: %v", err)
			}
		}
		return HookResult{}, nil
	})})
	c = mesh(ClientOptions{ToolHooks: true})
	if _, err := c.Call(t.Context(), "target/echo", nil); err != nil {
		t.Error(err)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("hooks were asked %d times about one call, want before and after", n)
	}
}

// TestToolHooksOutOfTime ends the call's time within its hook: the tool is not called then, and the error has ran "no". A
// failure of the hook itself does not affect the call.
func TestToolHooksOutOfTime(t *testing.T) {
	t.Parallel()
	var told sync.Map
	mesh := hookedMesh(t, map[string]*Toolbox{"guard": hookBox(&told, func(ctx context.Context, event json.RawMessage) (HookResult, error) {
		if strings.Contains(string(event), "hang") {
			<-ctx.Done()
		}
		return HookResult{}, errors.New("broken")
	})})
	c := mesh(ClientOptions{ToolHooks: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Call(ctx, "target/echo", json.RawMessage(`{"x":"hang"}`))
	if e := rpc.AsError(err); e.Code != rpc.CodeTimeout || e.Details().Ran != rpc.RanNo {
		t.Errorf("out of time in the hook: %v", err)
	}
	if got, err := c.Call(t.Context(), "target/echo", nil); err != nil || string(got) != "{}" {
		t.Errorf("with broken hooks: %s, %v", got, err)
	}
}

// TestToolHooksWithoutHooks measures a call when no extension offers a hook: no message, no allocation.
func TestToolHooksWithoutHooks(t *testing.T) {
	c := hookedMesh(t, nil)(ClientOptions{ToolHooks: true})
	c.hooks.hooked(beforeToolCall)
	if n := testing.AllocsPerRun(100, func() { c.hooks.hooked(beforeToolCall) }); n != 0 {
		t.Errorf("%v allocations to learn that there is no hook", n)
	}
	before := c.nc.Stats().OutMsgs
	if _, err := c.Call(t.Context(), "target/echo", nil); err != nil {
		t.Fatal(err)
	}
	if n := c.nc.Stats().OutMsgs - before; n != 1 {
		t.Errorf("a call without hooks sent %d messages", n)
	}
}

// TestEventsOnPage holds the events in docs/protocol.md to those that are fired.
func TestEventsOnPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```json event\n")[1:]
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "\n```")
		var e toolEvent
		dec := json.NewDecoder(strings.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if got, err := encode(e); err != nil || string(got) != text {
			t.Errorf("the page has\n%s, fired is\n%s (%v)", text, got, err)
		}
	}
	if len(blocks) != 2 {
		t.Errorf("%d events on the page, want one before and one after", len(blocks))
	}
}
