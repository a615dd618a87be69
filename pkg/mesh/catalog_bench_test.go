package mesh

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// bigCatalog has n extensions of ten tools each.
func bigCatalog(b *testing.B, n int) *Catalog {
	b.Helper()
	c := NewCatalog(nil, CatalogOptions{})
	var changes []change
	for i := range n {
		id := fmt.Sprintf("ext%d", i)
		var own []string
		for t := range 10 {
			own = append(own, fmt.Sprintf("tool%d", t))
		}
		spec, err := json.Marshal(testSpec(id, "1.0.0", own...))
		if err != nil {
			b.Fatal(err)
		}
		changes = append(changes,
			newChange("spec."+id, catalog.Stamp{Seq: uint64(2*i + 1), Time: 1}, spec),
			newChange("state."+id, catalog.Stamp{Seq: uint64(2*i + 2), Time: 1}, []byte(`{"state":"ready","available":true}`)))
	}
	c.take(changes, time.Now())
	return c
}

func BenchmarkCatalogGet(b *testing.B) {
	c := bigCatalog(b, 10_000)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok := c.Get("ext7777"); !ok {
				b.Error("not found")
			}
		}
	})
}

func BenchmarkCatalogTool(b *testing.B) {
	c := bigCatalog(b, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := c.Tool("ext_ext7777_tool3"); !ok {
			b.Fatal("not found")
		}
	}
}

// One state change must cost the same whatever the size of the catalog.
func BenchmarkCatalogStateChange(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := bigCatalog(b, n)
			b.ReportAllocs()
			seq := uint64(2*n + 1)
			for b.Loop() {
				c.take([]change{newChange("state.ext77", catalog.Stamp{Seq: seq, Time: 2}, []byte(`{"state":"lost"}`))}, time.Now())
				seq++
			}
		})
	}
}

// A snapshot of 1000 extensions of ten tools with schemas of 1.5 kB.
func BenchmarkCatalogLoad(b *testing.B) {
	bed := newCatalogBed(b)
	bed.bucket()
	schema := json.RawMessage(`{"type":"object","properties":{"a":{"type":"string","description":"` + strings.Repeat("x", 1450) + `"}}}`)
	for i := range 1000 {
		s := testSpec(fmt.Sprintf("ext%d", i), "1.0.0", "t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9")
		for t := range s.Tools {
			s.Tools[t].InputSchema = schema
		}
		bed.put("spec."+s.ID, s)
		bed.put("state."+s.ID, testState(heartbeat.Ready))
	}
	b.ReportAllocs()
	for b.Loop() {
		c, err := LoadCatalog(b.Context(), bed.nc, CatalogOptions{})
		if err != nil || len(c.All()) != 1000 {
			b.Fatalf("%d, %v", len(c.All()), err)
		}
	}
}

// A lookup of a name that is not a registered one must not compare every form of every name: agents try names that they
// remember or make up.
func BenchmarkCatalogResolve(b *testing.B) {
	for _, tt := range []struct{ name, asked string }{
		{"suffixed", wire.SuffixedName("ext7777", "tool3", 6)},
		{"unknown", "ext_weather_forecast"},
	} {
		b.Run(tt.name, func(b *testing.B) {
			c := bigCatalog(b, 10_000)
			c.Resolve(tt.asked) // makes the index
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := c.Resolve(tt.asked); (err == nil) != (tt.name == "suffixed") {
					b.Fatal(err)
				}
			}
		})
	}
}

// The extensions of a hook are looked up twice per call; a change of a state must not cause a search through all extensions.
func BenchmarkCatalogHooked(b *testing.B) {
	const n = 10_000
	c := bigCatalog(b, n)
	client := NewClient(nil, ClientOptions{Catalog: c})
	b.ReportAllocs()
	seq := uint64(2*n + 1)
	for b.Loop() {
		c.take([]change{newChange("state.ext77", catalog.Stamp{Seq: seq, Time: 2}, []byte(`{"state":"lost"}`))}, time.Now())
		if len(client.hooks.hooked(beforeToolCall)) != 0 {
			b.Fatal("somebody offers it")
		}
		seq++
	}
}

// A watcher that once had the whole catalog pending must not range over all that room with every later change.
func BenchmarkWatcherAfterAll(b *testing.B) {
	w := &watcher{pending: map[string]Event{}, wake: make(chan struct{}, 1)}
	for i := range 100_000 {
		w.add(Event{Key: fmt.Sprintf("state.ext%d", i), Op: opPut})
	}
	w.take()
	b.ReportAllocs()
	for b.Loop() {
		w.add(Event{Key: "state.ext77", Op: opPut})
		if len(w.take()) != 1 {
			b.Fatal("not what was added")
		}
	}
}
