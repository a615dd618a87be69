package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// call sends a request to the registry over NATS.
func (b *bed) call(method string, params, result any) *rpc.Error {
	b.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
	if err != nil {
		b.Fatal(err)
	}
	m, err := b.nc.RequestWithContext(b.timeout(), prefix.RegistryRPC(), body)
	if err != nil {
		b.Fatal(err)
	}
	var answer struct {
		ID     int             `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  *rpc.Error      `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil || answer.ID != 7 {
		b.Fatalf("%s: %v", m.Data, err)
	}
	if answer.Error != nil {
		if got, want := m.Header.Get("Nats-Service-Error-Code"), fmt.Sprint(int(answer.Error.Code)); got != want {
			b.Errorf("error header %q, want %q", got, want)
		}
		return answer.Error
	}
	if err := json.Unmarshal(answer.Result, result); err != nil {
		b.Fatal(err)
	}
	return nil
}

func TestService(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{Name: "one"})
	b.leading(r)
	exts := []*fakeExt{b.ext("a", "1.0.0", "na", "b_c"), b.ext("a_b", "1.0.0", "nb", "c")}
	for n := range 5 {
		exts = append(exts, b.ext(fmt.Sprintf("e%d", n), "1.0.0", fmt.Sprintf("n%d", n), "get", "set"))
	}
	for _, e := range exts {
		e.up()
		e.sendHeartbeats()
	}
	b1 := b.bridge("b1", "r1")
	b1.addSkill(wire.SkillEntry{Name: "Cook", Dir: "cook", Body: "boil"})
	b.await("all is there", func() bool {
		s := b.status(r)
		return s.Extensions[heartbeat.Ready] == 7 && s.Tools == 12 && s.Pending == 0 && b.get("skill.cook") != nil && b.get("host.b1") != nil
	})

	b.checkPages()
	b.checkOutline()

	for _, name := range []string{"ext_e1_get", "e1/get", wire.SuffixedName("e1", "get", 6)} {
		var res ResolveResult
		if err := b.call("resolve", ResolveParams{name}, &res); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if res.ID != "e1" || res.Tool == nil || res.Tool.Own != "get" || res.Spec.Subject != "ext.e1.rpc" || len(res.Spec.Tools) != 0 {
			t.Errorf("%s: %+v", name, res)
		}
	}
	for name, want := range map[string]string{
		"ext_a_b_c": `"kind":"ambiguous"`, "ext_e1_gte": `"nearest":["ext_e1_get"`, "nothing": `"kind":"not_found"`,
	} {
		err := b.call("resolve", ResolveParams{name}, nil)
		if err == nil || err.Code != rpc.CodeInvalidParams || !strings.Contains(string(err.Data), want) {
			t.Errorf("%s: %+v %s", name, err, err.Data)
		}
	}
	var s Status
	if err := b.call("status", nil, &s); err != nil || s.Name != "one" || !s.Leading || s.Leader != "one" {
		t.Errorf("status: %v %+v", err, s)
	}
	if err := b.call("dance", nil, nil); err == nil || err.Code != rpc.CodeMethodNotFound {
		t.Errorf("dance: %v", err)
	}
	var text strings.Builder
	if s.WriteMetrics(&text); !strings.Contains(text.String(), "extmesh_extensions{state=\"ready\"} 7\n") {
		t.Errorf("metrics:\n%s", text.String())
	}
}

// checkPages reads the whole catalog of TestService in small pages.
func (b *bed) checkPages() {
	b.Helper()
	var ids, hosts, skills []string
	for p := (CatalogParams{Limit: 3}); ; {
		var page CatalogResult
		if err := b.call("catalog", p, &page); err != nil {
			b.Fatal(err)
		}
		if page.CatalogID == "" || page.Revision == 0 || page.Stale {
			b.Errorf("snapshot: %+v", page.SnapshotVersion)
		}
		for _, e := range page.Extensions {
			ids = append(ids, e.ID)
			var s wire.Spec
			var d wire.StateDoc
			if json.Unmarshal(e.Spec, &s) != nil || json.Unmarshal(e.State, &d) != nil || s.ID != e.ID || d.State != heartbeat.Ready {
				b.Errorf("%s: %s %s", e.ID, e.Spec, e.State)
			}
		}
		for name := range page.Hosts {
			hosts = append(hosts, name)
		}
		for name := range page.Skills {
			skills = append(skills, name)
		}
		if p.Cursor = page.NextCursor; p.Cursor == "" {
			break
		}
	}
	if want := []string{"a", "a_b", "e0", "e1", "e2", "e3", "e4"}; !slices.Equal(ids, want) {
		b.Errorf("pages: %v", ids)
	}
	if !slices.Equal(hosts, []string{"b1"}) || !slices.Equal(skills, []string{"cook"}) {
		b.Errorf("hosts %v, skills %v", hosts, skills)
	}
}

// checkOutline reads the outline of TestService in small pages.
func (b *bed) checkOutline() {
	b.Helper()
	got := map[string]int{}
	for p := (CatalogParams{Limit: 3, Outline: true}); ; {
		var page CatalogResult
		if err := b.call("catalog", p, &page); err != nil {
			b.Fatal(err)
		}
		for _, e := range page.Extensions {
			var s wire.Spec
			if json.Unmarshal(e.Spec, &s) != nil || s.ID != e.ID || s.Version == "" || len(s.Tools) != 0 || len(e.State) == 0 || e.Tools == nil {
				b.Errorf("outline of %s: %s %s", e.ID, e.Spec, e.State)
				continue
			}
			var all wire.Spec
			if err := json.Unmarshal(b.get(fleet.SpecKey(e.ID)), &all); err != nil || len(all.Tools) != *e.Tools {
				b.Errorf("%s has %d tools in the outline, and %d in the bucket: %v", e.ID, *e.Tools, len(all.Tools), err)
			}
			got[e.ID] = *e.Tools
		}
		if len(page.Hosts)+len(page.Skills) > 0 {
			b.Errorf("the outline has hosts or skills: %+v", page)
		}
		if p.Cursor = page.NextCursor; p.Cursor == "" {
			break
		}
	}
	if len(got) != 7 || got["e1"] == 0 {
		b.Errorf("outline: %v", got)
	}
}

// TestOutline fills pages to their limit, and leaves out what cannot be read.
func TestOutline(t *testing.T) {
	var v view
	put := func(key, value string) {
		v.put(catalog.Change{Key: key, Value: []byte(value), At: catalog.Stamp{Seq: v.last() + 1}})
	}
	for _, id := range []string{"a", "b", "c"} {
		put("spec."+id, `{"id":"`+id+`","tools":[{"tool":"a","x":"`+strings.Repeat("x", 1000)+`"},{"tool":"]"}],"hooks":["h"]}`)
		put("state."+id, `{}`)
	}
	put("spec.b", `"broken"`)
	put("host.b1", `{}`)
	page := func(cursor string, room int) CatalogResult {
		return v.page(CatalogParams{Outline: true, Limit: pageEntries, Cursor: cursor}, room)
	}
	whole := page("", 1000)
	if len(whole.Extensions) != 3 || whole.NextCursor != "" || len(whole.Hosts) > 0 {
		t.Fatalf("%+v", whole)
	}
	if e := whole.Extensions[2]; string(e.Spec) != `{"id":"c","hooks":["h"]}` || *e.Tools != 2 {
		t.Errorf("%s, %d tools", e.Spec, *e.Tools)
	}
	if e := whole.Extensions[1]; e.Spec != nil || *e.Tools != 0 {
		t.Errorf("%s, %d tools", e.Spec, *e.Tools)
	}
	if part := page("", 150); len(part.Extensions) != 2 || part.NextCursor != "e.b" {
		t.Errorf("%+v", part)
	}
	if least := page("", 50); len(least.Extensions) != 1 || least.NextCursor != "e.a" || least.Extensions[0].State != nil {
		t.Errorf("%+v", least)
	}
	if last := page("e.b", 1000); len(last.Extensions) != 1 || last.NextCursor != "" {
		t.Errorf("%+v", last)
	}
	v.put(catalog.Change{Key: "spec.c", At: catalog.Stamp{Seq: v.last() + 1}})
	if len(v.outlines) != 2 {
		t.Errorf("%d outlines after a spec was deleted", len(v.outlines))
	}
}

// TestRequestsWhileStartingAndStopping: a request to a registry that starts or stops gets an answer or "no
// responders", and never a timeout.
func TestRequestsWhileStartingAndStopping(t *testing.T) {
	b := newBed(t)
	r, stop := b.registry(Config{Logger: quiet})
	b.leading(r) // the bucket exists: a server that is stopped while it creates one leaks a goroutine
	stop()
	asks := b.connect()
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := asks.RequestWithContext(ctx, prefix.RegistryRPC(), []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil && !errors.Is(err, nats.ErrNoResponders) {
			t.Fatal(err)
		}
		return err
	}
	for range 10 {
		_, stop := b.registry(Config{Logger: quiet})
		for ask() != nil {
		}
		stopped := make(chan struct{})
		go func() { defer close(stopped); stop() }() // ends with the registry; waited for below
		for ask() == nil {
		}
		<-stopped
	}
}
