package mesh

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/catalog"
)

// TestHookedIsKept looks through the catalog for hooks once, and again when a spec with hooks came, changed or went,
// whatever else happens.
func TestHookedIsKept(t *testing.T) {
	c := NewCatalog(nil, CatalogOptions{})
	c.keep = 0
	client := NewClient(nil, ClientOptions{Catalog: c})
	value := func(id, version string, hooks ...string) []byte {
		s := testSpec(id, version, "x")
		s.Hooks = hooks
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	state := []byte(`{"state":"ready"}`)
	var seq uint64
	stampOf := func(bucket int64) catalog.Stamp { seq++; return catalog.Stamp{Seq: seq, Time: bucket*1e9 + int64(seq)} }
	set := func(key string, value []byte) func() {
		return func() { c.take([]change{newChange(key, stampOf(1), value)}, time.Now()) }
	}
	anew := func(specs map[string][]byte) func() { // the bucket, with numbers that start over
		return func() {
			seq = 0
			var all []change
			for key, value := range specs {
				all = append(all, newChange(key, stampOf(2), value))
			}
			c.takeAll(all, all[len(all)-1].At, "the new one")
		}
	}
	for _, step := range []struct {
		name   string
		do     func()
		again  bool
		offers []string // before_tool_call, after the step
	}{
		{"the first look", func() {}, true, nil},
		{"a spec without hooks", set("spec.plain", value("plain", "1.0.0")), false, nil},
		{"a spec with a hook", set("spec.guard", value("guard", "1.0.0", beforeToolCall)), true, []string{"guard"}},
		{"a state", set("state.plain", state), false, []string{"guard"}},
		{"its own state", set("state.guard", state), false, []string{"guard"}},
		{"a state that goes", set("state.guard", nil), false, []string{"guard"}},
		{"a host", set("host.here", []byte(`{}`)), false, []string{"guard"}},
		{"another spec without hooks", set("spec.plain", value("plain", "2.0.0")), false, []string{"guard"}},
		{"a second hooker", set("spec.extra", value("extra", "1.0.0", beforeToolCall)), true, []string{"extra", "guard"}},
		{"one hooker changed", set("spec.extra", value("extra", "1.0.0", afterToolCall)), true, []string{"guard"}},
		{"hooks that go", set("spec.guard", value("guard", "2.0.0")), true, nil},
		{"hooks that come back", set("spec.guard", value("guard", "2.0.0", beforeToolCall)), true, []string{"guard"}},
		{"a spec that cannot be read", set("spec.guard", []byte(`{`)), true, nil},
		{"and can again", set("spec.guard", value("guard", "2.0.0", beforeToolCall)), true, []string{"guard"}},
		{"a bucket made anew", anew(map[string][]byte{"spec.other": value("other", "1.0.0", beforeToolCall)}), true, []string{"other"}},
		{"a spec that goes", set("spec.other", nil), true, nil},
	} {
		t.Run(step.name, func(t *testing.T) {
			before := client.hooks.offered.Load()
			step.do()
			var ids []string
			for _, at := range client.hooks.hooked(beforeToolCall) {
				ids = append(ids, at.id)
			}
			if !slices.Equal(ids, step.offers) {
				t.Errorf("offered by %v, want %v", ids, step.offers)
			}
			if again := client.hooks.offered.Load() != before; again != step.again {
				t.Errorf("looked through the catalog again: %t, want %t", again, step.again)
			}
		})
	}
}
