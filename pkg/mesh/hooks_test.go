package mesh

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// hooker is an extension with one hook.
type hooker struct {
	id       string
	priority int32
	f        hookFunc
}

func override(text string) hookFunc {
	return func(context.Context, json.RawMessage) (HookResult, error) {
		return HookResult{Override: json.RawMessage(text)}, nil
	}
}

func abort(context.Context, json.RawMessage) (HookResult, error) {
	return HookResult{Abort: true, Reason: "no"}, nil
}

// fire offers hook by all of hookers and fires it once.
func fire(t *testing.T, hook, event string, hookers ...hooker) Fired {
	t.Helper()
	b := newCatalogBed(t)
	b.bucket()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	nc := b.connect()
	for _, h := range hookers {
		box := &Toolbox{Version: "1.0.0"}
		box.AddHook(hook, h.f)
		wg.Go(func() { // ends with ctx
			if err := Serve(ctx, nc, Service{ID: h.id, Version: "1.0.0", Handler: box}); err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
		b.put("spec."+h.id, wire.Spec{ID: h.id, Version: "1.0.0", About: wire.About{Priority: h.priority}, Dialect: "ext", Subject: "ext." + h.id + ".rpc", Hooks: []string{hook}})
	}
	catalog, err := LoadCatalog(ctx, b.nc, CatalogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := NewClient(b.nc, ClientOptions{Catalog: catalog, HookTimeout: time.Minute})
	for _, h := range hookers { // served, and known to the server
		for {
			if _, err := client.CallExt(ctx, h.id, "ping", nil); err == nil {
				break
			}
		}
	}
	fired, err := client.Fire(ctx, hook, json.RawMessage(event))
	if err != nil {
		t.Fatal(err)
	}
	return fired
}

func TestFireInTurn(t *testing.T) {
	var asked []string
	note := func(id string, f hookFunc) hookFunc {
		return func(ctx context.Context, event json.RawMessage) (HookResult, error) {
			asked = append(asked, id+string(event)) // one at a time: that is what is tested
			return f(ctx, event)
		}
	}
	got := fire(t, "before_message", `{"text":"hi","n":1.0}`,
		hooker{"zeta", -1, note("zeta", override(`{"text":"HI"}`))},
		hooker{"alpha", 5, note("alpha", func(context.Context, json.RawMessage) (HookResult, error) { return HookResult{}, errors.New("broken") })},
		hooker{"beta", 5, note("beta", override(`{"extra":[1e400]}`))},
		hooker{"gamma", 6, note("gamma", abort)},
		hooker{"delta", 7, note("delta", abort)},
	)
	want := []string{`zeta{"text":"hi","n":1.0}`, `alpha{"text":"HI","n":1.0}`, `beta{"text":"HI","n":1.0}`, `gamma{"text":"HI","n":1.0,"extra":[1e400]}`}
	if fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("asked\n%v, want\n%v", asked, want)
	}
	if !got.Aborted || got.By != "gamma" || got.Reason != "no" || string(got.Event) != `{"text":"HI","n":1.0,"extra":[1e400]}` {
		t.Errorf("fired %+v", got)
	}
	if len(got.Warnings) != 1 || got.Warnings[0].ID != "alpha" || !strings.Contains(got.Warnings[0].Message, "broken") {
		t.Errorf("warnings %+v", got.Warnings)
	}
}

func TestFireAfter(t *testing.T) {
	var together sync.WaitGroup
	together.Add(3) // all three are called concurrently, or none ever answers
	meet := func(f hookFunc) hookFunc {
		return func(ctx context.Context, event json.RawMessage) (HookResult, error) {
			together.Done()
			together.Wait()
			return f(ctx, event)
		}
	}
	got := fire(t, "after_message", `{"text":"hi"}`,
		hooker{"one", 0, meet(override(`{"a":1}`))},
		hooker{"two", 0, meet(abort)},
		hooker{"three", 1, meet(override(`[]`))},
	)
	if got.Aborted || string(got.Event) != `{"text":"hi","a":1}` || len(got.Warnings) != 2 {
		t.Errorf("fired %+v", got)
	}
}

// TestFireLargeOverride: an override with too many members changes nothing.
func TestFireLargeOverride(t *testing.T) {
	var members []string
	for i := range maxOverride + 1 {
		members = append(members, fmt.Sprintf(`"m%d":1`, i))
	}
	got := fire(t, "after_message", `{"text":"hi"}`, hooker{"one", 0, override("{" + strings.Join(members, ",") + "}")})
	if string(got.Event) != `{"text":"hi"}` || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0].Message, "its override has 1001 members") {
		t.Errorf("fired %.200s with the warnings %v", got.Event, got.Warnings)
	}
}

func TestFireRefuses(t *testing.T) {
	if _, err := NewClient(nil, ClientOptions{}).Fire(t.Context(), "before_message", nil); err == nil {
		t.Error("fired without a catalog")
	}
	c := NewClient(nil, ClientOptions{Catalog: NewCatalog(nil, CatalogOptions{})})
	if _, err := c.Fire(t.Context(), "before_message", json.RawMessage(`[1]`)); err == nil {
		t.Error("fired an event that is no object")
	}
	f, err := c.Fire(t.Context(), "before_message", nil)
	if err != nil || f.Aborted || string(f.Event) != "{}" {
		t.Errorf("nobody offers it: %+v, %v", f, err)
	}
}

// TestFireBounds offers a hook by more extensions than are called, one of which does not answer in time. The first maxHooked
// are called; the slow one, and the first that was not called, are warnings.
func TestFireBounds(t *testing.T) {
	t.Parallel()
	b := newCatalogBed(t)
	b.bucket()
	nc := b.connect()
	var asked [6]atomic.Int64 // by attempt: requests of the one before can arrive late
	attempt := -1
	event := func(attempt int) []byte { return fmt.Appendf(nil, `{"attempt":%d}`, attempt) }
	if _, err := nc.QueueSubscribe("ext.*.rpc", wire.QueueGroup, func(m *nats.Msg) {
		for i := range asked {
			if bytes.Contains(m.Data, event(i)) {
				asked[i].Add(1)
			}
		}
		if m.Subject != "ext.x007.rpc" {
			m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":null}`))
		}
	}); err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	const n = maxHooked + 2
	for i := range n {
		id := fmt.Sprintf("x%03d", i)
		b.put("spec."+id, wire.Spec{ID: id, Version: "1.0.0", Subject: "ext." + id + ".rpc", Hooks: []string{"before_message", "after_message"}})
	}
	catalog, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, hook := range []string{"before_message", "after_message"} {
		var f Fired
		for _, limit := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} { // in which the others answer
			attempt++
			client := NewClient(b.nc, ClientOptions{Catalog: catalog, HookTimeout: limit})
			f, err = client.Fire(t.Context(), hook, event(attempt))
			if err != nil || len(f.Warnings) <= 2 {
				break
			}
		}
		if err != nil || asked[attempt].Load() != maxHooked || f.Aborted {
			t.Errorf("%s: %d of %d were asked: %+v, %v", hook, asked[attempt].Load(), n, f, err)
		}
		if len(f.Warnings) != 2 || f.Warnings[0].ID != fmt.Sprintf("x%03d", maxHooked) || f.Warnings[1].ID != "x007" ||
			!strings.Contains(f.Warnings[1].Message, "in time") {
			t.Errorf("%s: warnings %+v", hook, f.Warnings)
		}
	}
}
