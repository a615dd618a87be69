package mesh

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
)

// maxHooked limits how many extensions are called for one hook; the others are not called, with a warning.
const maxHooked = 128

// Fired is the result of a hook.
type Fired struct {
	Event    json.RawMessage `json:"event"`              // with every override merged in
	Aborted  bool            `json:"aborted"`            // a before_* hook was stopped
	By       string          `json:"by,omitempty"`       // the extension that stopped it
	Reason   string          `json:"reason,omitempty"`   // its reason
	Warnings []HookWarning   `json:"warnings,omitempty"` // extensions that failed, or returned an unusable result
}

// HookWarning is an extension that was called for a hook and had no effect.
type HookWarning struct {
	ID      string `json:"id"`
	Message string `json:"message"`
}

// Fire calls every extension that lists the hook in its spec, in the order of priority, lowest first, then of id
// (docs/protocol.md, "Hooks"). For before_* hooks, each gets the event with the changes of those before it, and an abort
// ends the round. For after_* hooks, all are called concurrently, cannot abort, and their overrides are merged in the same
// order. An extension that fails or takes longer than ClientOptions.HookTimeout only causes a warning. event is a JSON
// object. The error is that event is not an object, that the Client has no Catalog, or that ctx has ended.
func (c *Client) Fire(ctx context.Context, hook string, event json.RawMessage) (Fired, error) {
	return c.hooks.fire(ctx, hook, event, identity{})
}

// fire is Fire for a caller; the zero identity is the Client's own.
func (c *hooks) fire(ctx context.Context, hook string, event json.RawMessage, caller identity) (Fired, error) {
	if c.opt.Catalog == nil {
		return Fired{}, errors.New("mesh: firing a hook needs a catalog")
	}
	if len(event) == 0 {
		event = json.RawMessage("{}")
	}
	if !isObject(event) {
		return Fired{}, fmt.Errorf("mesh: the event of %s is not a JSON object", hook)
	}
	asked := slices.Clone(c.hooked(hook))
	for i := range asked {
		asked[i].identify(caller.agent, caller.session)
	}
	f := Fired{Event: event}
	if len(asked) > maxHooked {
		f.warn(asked[maxHooked].id, "not called: at most %d extensions are called for one hook", maxHooked)
		asked = asked[:maxHooked]
	}
	if strings.HasPrefix(hook, "after_") {
		c.fireAll(ctx, &f, hook, asked)
	} else {
		c.fireInTurn(ctx, &f, hook, asked)
	}
	return f, context.Cause(ctx)
}

// hooks is the part of a Client that calls hooks.
type hooks struct {
	*Client
	offered atomic.Pointer[offeredHooks]
}

// offeredHooks has the extensions of each hook, in the order of calling, for one hookChanges of the catalog.
type offeredHooks struct {
	changes uint64
	by      map[string][]target
}

// hooked returns the extensions that offer a hook, in the order of calling.
func (c *hooks) hooked(hook string) []target {
	if o := c.offered.Load(); o != nil && o.changes == c.opt.Catalog.hookChanges() {
		return o.by[hook]
	}
	found, changes := c.opt.Catalog.withHooks()
	slices.SortFunc(found, func(a, b Extension) int {
		return cmp.Or(cmp.Compare(a.Spec.Priority, b.Spec.Priority), strings.Compare(a.ID, b.ID))
	})
	o := &offeredHooks{changes: changes, by: map[string][]target{}}
	for _, e := range found {
		for _, hook := range e.Spec.Hooks {
			o.by[hook] = append(o.by[hook], c.targetOf(e))
		}
	}
	c.offered.Store(o)
	return o.by[hook]
}

func (c *hooks) fireInTurn(ctx context.Context, f *Fired, hook string, asked []target) {
	for _, t := range asked {
		if ctx.Err() != nil {
			return
		}
		r, err := c.askHook(ctx, t, hook, f.Event)
		if err != nil {
			f.warn(t.id, "%v", err)
			continue
		}
		if r.Abort {
			f.Aborted, f.By, f.Reason = true, t.id, r.Reason
			return
		}
		f.merge(t.id, r)
	}
}

func (c *hooks) fireAll(ctx context.Context, f *Fired, hook string, asked []target) {
	type answer struct {
		r   HookResult
		err error
	}
	answers := make([]answer, len(asked))
	var wg sync.WaitGroup
	for i, t := range asked {
		wg.Go(func() { // ends within the hook's time
			answers[i].r, answers[i].err = c.askHook(ctx, t, hook, f.Event)
		})
	}
	wg.Wait()
	for i, a := range answers {
		switch {
		case a.err != nil:
			f.warn(asked[i].id, "%v", a.err)
		case a.r.Abort:
			f.warn(asked[i].id, "it returned abort (%s), which after_* hooks cannot", a.r.Reason)
		default:
			f.merge(asked[i].id, a.r)
		}
	}
}

func (c *hooks) askHook(ctx context.Context, t target, hook string, event json.RawMessage) (r HookResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.opt.HookTimeout)
	defer cancel()
	t.hook = true
	result, err := c.ask(ctx, t, "hooks/"+hook, event)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(result, &r); err != nil { // null leaves r as it is
		return r, fmt.Errorf("its answer is not {abort?, reason?, override?}: %w", err)
	}
	return r, nil
}

// The limits of an override. Each of its members is put into the event separately.
const (
	maxOverride      = 1000 // members
	maxOverrideBytes = 1 << 20
)

// merge puts an override's members into the event, at the top level.
func (f *Fired) merge(id string, r HookResult) {
	if len(r.Override) == 0 || string(r.Override) == "null" {
		return
	}
	if len(r.Override) > maxOverrideBytes {
		f.warn(id, "its override has %d bytes, over the limit of %d", len(r.Override), maxOverrideBytes)
		return
	}
	members, err := wire.Members(r.Override)
	if err != nil {
		f.warn(id, "its override is not an object")
		return
	}
	if len(members) > maxOverride {
		f.warn(id, "its override has %d members, over the limit of %d", len(members), maxOverride)
		return
	}
	for _, m := range members {
		if event, ok := jsonrpc.SetMember(f.Event, m.Key, m.Value); ok {
			f.Event = event
		}
	}
}

func (f *Fired) warn(id, format string, args ...any) {
	f.Warnings = append(f.Warnings, HookWarning{id, fmt.Sprintf(format, args...)})
}

func isObject(v json.RawMessage) bool {
	var o map[string]json.RawMessage
	return json.Unmarshal(v, &o) == nil && o != nil
}
