package events

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

var start = time.Date(2026, 11, 24, 3, 0, 0, 0, time.UTC)

// TestBetween: what two documents mean.
func TestBetween(t *testing.T) {
	instance := func(name, state, more string) string {
		return fmt.Sprintf(`{"instance":%q,"bridge":"b1","state":%q%s}`, name, state, more)
	}
	doc := func(instances ...string) string { return `{"instances":[` + strings.Join(instances, ",") + `]}` }
	for what, tt := range map[string]struct {
		key, old, now string
		want          []string
	}{
		"new":                {"state.x", "", doc(instance("i", "spawning", "")), []string{"instance x i b1  -> spawning"}},
		"restarts":           {"state.x", doc(instance("i", "ready", "")), doc(instance("i", "restarting", `,"reason":"signal SIGKILL"`)), []string{"instance x i b1 ready -> restarting signal SIGKILL"}},
		"restarted at once":  {"state.x", doc(instance("i", "ready", `,"restarts":1`)), doc(instance("i", "ready", `,"restarts":2`)), []string{"instance x i b1 ready -> ready"}},
		"one of two is lost": {"state.x", doc(instance("i", "ready", ""), instance("j", "ready", "")), doc(instance("i", "ready", ""), instance("j", "lost", "")), []string{"instance x j b1 ready -> lost"}},
		"one is removed":     {"state.x", doc(instance("i", "ready", ""), instance("j", "lost", `,"reason":"old"`)), doc(instance("i", "ready", "")), []string{"instance x j b1 lost -> "}},
		"all are removed":    {"state.x", doc(instance("i", "shutdown", "")), "", []string{"instance x i b1 shutdown -> "}},
		"a breaker":          {"state.x", doc(instance("i", "ready", "")), doc(instance("i", "ready", `,"breaker":{"state":"open"}`)), []string{"instance x i b1 breaker closed -> breaker open"}},
		"nothing":            {"state.x", doc(instance("i", "ready", "")), doc(instance("i", "ready", `,"reason":"slow"`)), nil},
		"another key":        {"spec.x", "", `{"id":"x"}`, nil},
		"no documents":       {"state.x", "?", `[1]`, nil},
		"a host":             {"host.b1", "", `{"state":"ready"}`, []string{"host   b1  -> ready"}},
		"a lost host":        {"host.b1", `{"state":"ready"}`, `{"state":"lost","reason":"is gone"}`, []string{"host   b1 ready -> lost is gone"}},
		"a restarted host":   {"host.b1", `{"state":"ready","since":"2026-01-01T00:00:00Z"}`, `{"state":"ready","since":"2026-01-02T00:00:00Z"}`, []string{"host   b1 ready -> ready the bridge has restarted"}},
		"a forgotten host":   {"host.b1", `{"state":"lost","since":"2026-01-01T00:00:00Z"}`, "", []string{"host   b1 lost -> "}},
		"a host's report":    {"host.b1", `{"state":"ready","extensions":[]}`, `{"state":"ready","extensions":["x"]}`, nil},
	} {
		var got []string
		for _, e := range between(tt.key, []byte(tt.old), []byte(tt.now)) {
			got = append(got, strings.TrimRight(fmt.Sprintf("%s %s %s %s %s -> %s %s", e.Kind, e.ID, e.Instance, e.Bridge, e.From, e.To, e.Reason), " "))
		}
		for n := range tt.want {
			tt.want[n] = strings.TrimRight(tt.want[n], " ")
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", what, got, tt.want)
		}
	}
}

// TestLog floods a log, and selects from it.
func TestLog(t *testing.T) {
	var l Log
	state := func(n int, id string) { // one event, at start + n seconds
		reason := strings.Repeat("é<", 50)
		if n < 10 {
			reason = strings.Repeat(reason, 100)
		}
		now := fmt.Sprintf(`{"instances":[{"instance":"i%d","bridge":"b%d","state":"lost","reason":%q}]}`, n, n%2, reason)
		l.Changed("state."+id, nil, []byte(now), uint64(n), start.Add(time.Duration(n)*time.Second))
	}
	state(1, "early")
	l.Start(start, []byte(`{"name":"r1","instance":"a"}`))
	l.Start(start.Add(time.Hour), nil)
	l.Changed(wire.KeyLease, nil, []byte(`{"name":"r1","instance":"a"}`), 2, start) // renewed
	l.Changed(wire.KeyLease, nil, nil, 3, start)
	l.Changed(wire.KeyLease, nil, []byte(`{"name":"r2","instance":"b"}`), 4, start)
	if a := l.Answer(Query{}, 1<<20); len(a.Events) != 1 || a.Events[0].From != "r1" || a.Events[0].To != "r2" || !a.Since.Equal(start) || a.More {
		t.Errorf("%+v", a)
	}
	last := maxEvents + 101
	for n := range last + 1 {
		state(n, []string{"x", "y.z"}[n%2])
	}
	if len(l.ring) != maxEvents {
		t.Errorf("%d events", len(l.ring))
	}

	for what, tt := range map[string]struct {
		q           Query
		n           int
		first, last int
		more        bool
	}{
		"all":           {Query{}, maxAnswer, last - maxAnswer + 1, last, true},
		"some":          {Query{Limit: 3}, 3, last - 2, last, true},
		"an extension":  {Query{ID: "x", Limit: 2}, 2, last - 3, last - 1, true},
		"a parent":      {Query{ID: "y", Limit: 2}, 2, last - 2, last, true},
		"a bridge":      {Query{Bridge: "b0", Limit: 2}, 2, last - 3, last - 1, true},
		"another kind":  {Query{Kind: Leader}, 0, 0, 0, false},
		"since":         {Query{Since: start.Add(time.Duration(last-4) * time.Second)}, 5, last - 4, last, false},
		"after":         {Query{After: uint64(last - 4)}, 4, last - 3, last, false},
		"a huge number": {Query{Limit: 1 << 40}, maxAnswer, last - maxAnswer + 1, last, true},
	} {
		a := l.Answer(tt.q, 4<<20)
		if len(a.Events) != tt.n || a.More != tt.more || tt.n > 0 && (a.Events[0].Revision != uint64(tt.first) || a.Events[tt.n-1].Revision != uint64(tt.last)) {
			t.Errorf("%s: %d events, more %v", what, len(a.Events), a.More)
		}
	}
	const room = 64 << 10
	a := l.Answer(Query{}, room)
	if text, err := json.Marshal(a); err != nil || len(text) > room || len(text) < room/8 || !a.More {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

// TestRecreatedBucket: the revisions of another bucket begin again. A follower that has seen its changes does not get the earlier
// events once more.
func TestRecreatedBucket(t *testing.T) {
	var l Log
	l.Start(start, nil)
	l.Changed("host.b1", nil, []byte(`{"state":"ready"}`), 5000, start)
	l.Changed("host.b1", nil, []byte(`{"state":"ready"}`), 12, start.Add(time.Second))
	q := Query{After: 11}
	var got []uint64
	for _, e := range l.ring {
		if q.matches(&e) {
			got = append(got, e.Revision)
		}
	}
	if !slices.Equal(got, []uint64{12}) {
		t.Errorf("%v", got)
	}
}
