package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
)

// specWriter changes the specs of a catalog as a bucket would, one sequence after the other.
type specWriter struct {
	t   *testing.T
	c   *Catalog
	seq uint64
}

// set gives an extension these tools, under the names that they have; nil takes it away.
func (w *specWriter) set(id string, names map[wire.ToolKey]string, own ...string) {
	w.t.Helper()
	w.seq++
	ch := newChange("spec."+id, catalog.Stamp{Seq: w.seq, Time: int64(w.seq)}, nil)
	if own != nil {
		s := testSpec(id, "1.0.0", own...)
		for i := range s.Tools {
			if name, ok := names[wire.ToolKey{ID: id, Tool: own[i]}]; ok {
				s.Tools[i].Name = name
			}
		}
		var err error
		if ch.Value, err = json.Marshal(s); err != nil {
			w.t.Fatal(err)
		}
	}
	w.c.take([]change{ch}, time.Now())
}

// resolved returns the result of Resolve as text.
func resolved(c *Catalog, name string) string {
	e, tool, err := c.Resolve(name)
	if err != nil {
		return err.Error()
	}
	return e.ID + "/" + tool.Own + " " + tool.Name
}

// TestResolveAfterChanges adds, changes and removes extensions with clashing tools, and compares the results of Resolve with
// those of a new catalog.
func TestResolveAfterChanges(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 10 {
		kept := &specWriter{t: t, c: NewCatalog(nil, CatalogOptions{})}
		before := map[string][]string{}
		forms := map[string]bool{"ext_nobody_x": true}
		for range 8 {
			keys := hostileTools(r, 1+r.IntN(20))
			names := wire.AssignNames(keys)
			now := map[string][]string{}
			for k, name := range names { // each key once
				now[k.ID] = append(now[k.ID], k.Tool)
				forms[name], forms[wire.ToolName(k.ID, k.Tool)], forms[wire.SuffixedName(k.ID, k.Tool, 6)], forms[k.String()] = true, true, true, true
			}
			fresh := &specWriter{t: t, c: NewCatalog(nil, CatalogOptions{})}
			for id := range before {
				if now[id] == nil {
					kept.set(id, nil)
				}
			}
			for id, own := range now {
				kept.set(id, names, own...)
				fresh.set(id, names, own...)
			}
			before = now
			for form := range forms {
				if got, want := resolved(kept.c, form), resolved(fresh.c, form); got != want {
					t.Fatalf("%s is %s, want %s", form, got, want)
				}
			}
		}
	}
}

// TestResolveOfAnotherBucket resolves suffixed names while extensions come and go, and after the bucket was replaced.
func TestResolveOfAnotherBucket(t *testing.T) {
	w := &specWriter{t: t, c: NewCatalog(nil, CatalogOptions{})}
	w.c.keep = 0
	w.set("weather", nil, "get")
	six := wire.SuffixedName("weather", "get", 6)
	if got := resolved(w.c, six); got != "weather/get ext_weather_get" {
		t.Fatal(got)
	}
	w.c.take([]change{newChange("state.weather", catalog.Stamp{Seq: 2, Time: 2}, []byte(`{"state":"ready"}`))}, time.Now())
	w.seq = 2
	w.set("weather", nil, "get") // the same tools
	if got := resolved(w.c, six); got != "weather/get ext_weather_get" {
		t.Errorf("%s is %s", six, got)
	}
	w.set("mail", nil, "send")
	for name, want := range map[string]string{six: "weather/get ext_weather_get", wire.SuffixedName("mail", "send", 6): "mail/send ext_mail_send"} {
		if got := resolved(w.c, name); got != want {
			t.Errorf("%s is %s", name, got)
		}
	}
	w.set("mail", nil)
	if got := resolved(w.c, six); got != "weather/get ext_weather_get" {
		t.Errorf("%s is %s", six, got)
	}

	other := newChange("spec.other", catalog.Stamp{Seq: 1, Time: 1 << 50}, []byte(`{"id":"other","tools":[{"name":"ext_other_x","tool":"x"}]}`))
	w.c.takeAll([]change{other}, other.At, "another bucket")
	if got := resolved(w.c, wire.SuffixedName("other", "x", 6)); got != "other/x ext_other_x" {
		t.Errorf("of the new bucket: %s", got)
	}
	if _, _, err := w.c.Resolve(six); !errors.As(err, new(*NotFoundError)) {
		t.Errorf("of the old bucket: %v", err)
	}
}

// TestResolveWhileItChanges: a name is found as soon as its spec is applied.
func TestResolveWhileItChanges(t *testing.T) {
	w := &specWriter{t: t, c: NewCatalog(nil, CatalogOptions{})}
	w.set("steady", nil, "x")
	done := make(chan struct{})
	var asking sync.WaitGroup
	for range 3 {
		asking.Go(func() { // ends with done
			for {
				select {
				case <-done:
					return
				default:
				}
				if got := resolved(w.c, wire.SuffixedName("steady", "x", 6)); got != "steady/x ext_steady_x" {
					t.Errorf("steady: %s", got)
				}
				resolved(w.c, "ext_stedy_x")
			}
		})
	}
	for i := range 300 {
		id := fmt.Sprintf("e%d", i%7)
		own := fmt.Sprintf("t%d", i)
		w.set(id, nil, own)
		if got, want := resolved(w.c, wire.SuffixedName(id, own, 6)), fmt.Sprintf("%s/%s ext_%[1]s_%[2]s", id, own); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	close(done)
	asking.Wait()
}

// hostileTools makes tools that are likely to clash: few letters, ids that run into tools, dots, case, length.
func hostileTools(r *rand.Rand, count int) []wire.ToolKey {
	ids := []string{"a", "a_b", "a_b_c", "a.b", "a-b", "b", "b_c", "b.c", "c"}
	parts := []string{"a", "B", "b", "c", "_", ".", "é", "a_b", "b_c", strings.Repeat("x", 60)}
	seen := map[wire.ToolKey]bool{}
	for range count {
		var tool strings.Builder
		for range 1 + r.IntN(3) {
			tool.WriteString(parts[r.IntN(len(parts))])
		}
		seen[wire.ToolKey{ID: ids[r.IntN(len(ids))], Tool: tool.String()}] = true
	}
	keys := slices.Collect(maps.Keys(seen))
	// Tools named as others' suffixed forms.
	for _, k := range keys[:min(5, len(keys))] {
		name := strings.TrimPrefix(wire.SuffixedName(k.ID, k.Tool, 6), "ext_a_")
		keys = append(keys, wire.ToolKey{ID: "a", Tool: name})
	}
	return keys
}
