package registry

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/events"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestEvents: every replica records the transitions of instances, hosts and leaders, from its start on.
func TestEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		one, stop := b.registry(Config{Name: "one"})
		b.leading(one)
		two, _ := b.registry(Config{Name: "two"})
		b.await("the standby records", func() bool { return !b.events(two, events.Query{}).Since.IsZero() })
		x := b.ext("x", "1.0.0", "i1", "t")
		x.up()
		b.await("it is ready", b.is("x", heartbeat.Ready))
		x.heartbeat(heartbeat.Restarting)
		b.await("it restarts", b.is("x", heartbeat.Restarting))
		x.heartbeat(heartbeat.Ready)
		b.await("it is ready again", b.is("x", heartbeat.Ready))
		stop()
		b.leading(two)
		b.await("another leader", func() bool { return len(b.events(two, events.Query{Kind: events.Leader}).Events) == 1 })
		var got []string
		for _, e := range b.events(two, events.Query{}).Events {
			got = append(got, strings.TrimSpace(fmt.Sprint(e.ID, " ", e.From, "->", e.To, " ", e.Reason)))
		}
		for _, want := range []string{"x ready->restarting", "x restarting->ready", "one->two"} {
			if !slices.Contains(got, want) {
				t.Errorf("no event %q in %q", want, got)
			}
		}
		answer, err := two.dispatch(t.Context(), "events", json.RawMessage(`{"id":"x","limit":1}`))
		if a, ok := answer.(events.Answer); err != nil || !ok || len(a.Events) != 1 || a.Registry != "two" || a.CatalogID == "" {
			t.Errorf("%+v, %v", answer, err)
		}
		if _, err := two.dispatch(t.Context(), "events", json.RawMessage(`{"since":"yesterday"}`)); err == nil {
			t.Error("wrong params are accepted")
		}
	})
}

func (b *bed) events(r *Registry, q events.Query) events.Answer {
	b.Helper()
	a, err := r.events(b.timeout(), q)
	if err != nil {
		b.Fatal(err)
	}
	return a
}
