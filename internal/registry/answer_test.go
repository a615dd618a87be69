package registry

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestRepliesAreInboxes: the registry does not reply on subjects of the catalog or of control messages.
func TestRepliesAreInboxes(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{Name: "one"})
	b.leading(r)
	for reply, want := range map[string]bool{
		"$KV.ext_catalog.lease.registry":        false,
		"$JS.API.STREAM.PURGE.KV_ext_catalog":   false,
		"ext.registry.heartbeat.ghost":          false,
		"ext.registry.shutdown.weather":         false,
		"ext.weather.rpc":                       false,
		"_INBOX.somebody.1":                     true,
		"extra.inbox":                           true,
		"an.ext.inbox":                          true,
		"somebody.$KV.ext_catalog.spec.weather": true,
	} {
		answers, err := b.nc.SubscribeSync(reply)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.nc.PublishRequest(prefix.RegistryRPC(), reply, []byte(`{"jsonrpc":"2.0","id":"ghost","method":"ping"}`)); err != nil {
			t.Fatal(err)
		}
		var pong struct{}
		if err := b.call("ping", nil, &pong); err != nil { // answered after the earlier requests
			t.Fatal(err)
		}
		n, _, err := answers.Pending()
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for range n {
			m, err := answers.NextMsg(time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(m.Data), `"ghost"`) { // other messages, such as renewals of the lease, are expected
				got++
			}
		}
		if (got > 0) != want {
			t.Errorf("%d answers on %s", got, reply)
		}
		if err := answers.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestErrorHeaders: an answer has the headers of a micro service's error if it is an error.
func TestErrorHeaders(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	for method, want := range map[string]string{"ping": "", "pong": fmt.Sprint(int(rpc.CodeMethodNotFound))} {
		m, err := b.nc.RequestWithContext(b.timeout(), prefix.RegistryRPC(), []byte(`{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		if code, text := m.Header.Get("Nats-Service-Error-Code"), m.Header.Get("Nats-Service-Error"); code != want || (text != "") != (want != "") {
			t.Errorf("%s: %v %s", method, m.Header, m.Data)
		}
	}
}

// TestIDs: an answer has the id of its request, unless that is invalid.
func TestIDs(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	long := `"` + strings.Repeat("<", 254) + `"`
	for id, want := range map[string]string{
		`7`: `7`, `"a<b"`: `"a<b"`, long: long, `"` + strings.Repeat("x", 255) + `"`: `null`, `{"an":"object"}`: `null`, `null`: `null`,
	} {
		m := b.callWithID("ping", id, nil)
		if got := string(m.ID); got != want {
			t.Errorf("%.100s: answered to %.100s", id, got)
		}
		if refused := want == "null"; refused != (m.Error != nil && m.Error.Code == rpc.CodeInvalidRequest) {
			t.Errorf("%.100s: %v", id, m.Error)
		}
	}
}

type response struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *rpc.Error      `json:"error"`
}

// callWithID is call with a given id.
func (b *bed) callWithID(method, id string, params any) (out response) {
	b.Helper()
	p, err := json.Marshal(params)
	if err != nil {
		b.Fatal(err)
	}
	m, err := b.nc.RequestWithContext(b.timeout(), prefix.RegistryRPC(), []byte(`{"jsonrpc":"2.0","id":`+id+`,"method":"`+method+`","params":`+string(p)+`}`))
	if err == nil {
		err = json.Unmarshal(m.Data, &out)
	}
	if err != nil {
		b.Fatalf("%s %s: %v", method, p, err)
	}
	return out
}

// TestPagesOfLargeEntries: the catalog can be read to its end with large entries and any content. The limit of a
// message applies to the encoded entries.
// The entries are in the registry's memory only, which it compares with the bucket every few seconds: in a bubble that time
// does not pass.
func TestPagesOfLargeEntries(t *testing.T) { inBubble(t, testPagesOfLargeEntries) }

func testPagesOfLargeEntries(t *testing.T, b *bed) {
	r, _ := b.registry(Config{Name: "one"})
	b.leading(r)
	most := int(b.nc.MaxPayload())
	text := func(size int) string { return `"` + strings.Repeat("<a & b>", size/7+1)[:size-2] + `"` }
	view := map[string]string{
		fleet.SpecKey("both"): text(most - 2048 - most/32), fleet.StateKey("both"): text(most / 32),
		fleet.SpecKey("large"): text(most - 2048), fleet.StateKey("large"): text(4096),
		fleet.SpecKey("tight"): text(most - 2048), fleet.StateKey("tight"): text(1800),
		fleet.SpecKey("over"): text(most + 1), fleet.StateKey("over"): text(most + 1),
		fleet.SpecKey("small"): text(100), fleet.StateKey("small"): text(100),
		fleet.HostKey(strings.Repeat("b", 250)): text(most - 2048),
	}
	for n := range 12 {
		view[fleet.SkillKey(fmt.Sprint("s", n))] = text(150_000)
	}
	err := r.inLoop(t.Context(), func(l *loop) {
		for key, value := range view {
			putValue(l, key, []byte(value))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	entry := func(key string, value json.RawMessage) {
		if string(value) == view[key] {
			got = append(got, key)
		}
	}
	pages := 0
	for p := (CatalogParams{}); ; pages++ {
		m := b.callWithID("catalog", `"`+strings.Repeat("i", 254)+`"`, p)
		var page CatalogResult
		if err := json.Unmarshal(m.Result, &page); err != nil || m.Error != nil {
			t.Fatalf("%+v: %v %v", p, err, m.Error)
		}
		for _, e := range page.Extensions {
			got = append(got, e.ID)
			entry(fleet.SpecKey(e.ID), e.Spec)
			entry(fleet.StateKey(e.ID), e.State)
		}
		for name, value := range page.Hosts {
			entry(fleet.HostKey(name), value)
		}
		for name, value := range page.Skills {
			entry(fleet.SkillKey(name), value)
		}
		if p.Cursor = page.NextCursor; p.Cursor == "" {
			break
		}
	}
	want := []string{"both", "spec.both", "state.both", "large", "spec.large", "over", "small", "spec.small", "state.small",
		"tight", "spec.tight"}
	for key := range view {
		if kind, _, _ := strings.Cut(key, "."); kind == wire.KindHost || kind == wire.KindSkill {
			want = append(want, key)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || pages > 8 {
		t.Errorf("on %d pages:\n%.60q, want\n%.60q", pages+1, got, want)
	}
}

// TestSpecLeavesRoom: the largest spec that the registry writes fits into one page together with an ordinary state.
// It runs in a bubble for the same reason as TestPagesOfLargeEntries.
func TestSpecLeavesRoom(t *testing.T) { inBubble(t, testSpecLeavesRoom) }

func testSpecLeavesRoom(t *testing.T, b *bed) {
	r, _ := b.registry(Config{Name: "one"})
	b.leading(r)
	var page CatalogResult
	err := r.inLoop(t.Context(), func(l *loop) {
		spec := []byte(`"` + strings.Repeat("x", l.limits().Spec-2) + `"`)
		putValue(l, fleet.SpecKey("big"), spec)
		putValue(l, fleet.StateKey("big"), []byte(`"`+strings.Repeat("ready", 5000)+`"`))
	})
	if err == nil {
		page, err = r.Catalog(t.Context(), CatalogParams{})
	}
	if err != nil || len(page.Extensions) != 1 || page.Extensions[0].Spec == nil || page.Extensions[0].State == nil {
		t.Errorf("%.200s, %v", fmt.Sprintf("%+v", page.Extensions), err)
	}
}

// putValue stores a value in the view, as the next message of the bucket.
func putValue(l *loop, key string, value []byte) {
	l.view.put(catalog.Change{Key: key, At: catalog.Stamp{Seq: l.view.last() + 1, Time: 1}, Value: value})
}
