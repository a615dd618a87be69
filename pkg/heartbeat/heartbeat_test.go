package heartbeat

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParseBeat(t *testing.T) {
	for _, c := range []struct{ body, fault string }{
		{`{"id":"weather"}`, ""},
		{`{"id":"weather","state":"draining","unknown":[1]}`, ""},
		{`{"id":"weather","instance":"a-B_9","breaker":{"state":"open","retry_at":"2026-01-01T00:00:00Z"}}`, ""},
		{`{}`, `no "id"`},
		{`[]`, "not valid JSON"},
		{`{"id":"weather","state":"hungry"}`, "unknown state"},
		{`{"id":"weather","instance":"a.b"}`, "instance"},
		{`{"id":"weather","instance":"` + strings.Repeat("x", 65) + `"}`, "instance"},
		{`{"id":"weather","version":"` + strings.Repeat("x", 65) + `"}`, "version"},
		{`{"id":"weather","breaker":{"state":"ajar"}}`, "breaker state"},
		{`{"id":"` + strings.Repeat("x", MaxBeat) + `"}`, "over the limit"},
	} {
		b, err := ParseBeat([]byte(c.body))
		switch {
		case c.fault == "" && (err != nil || b.ID != "weather" || b.State == ""):
			t.Errorf("%.80s: %+v, %v", c.body, b, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%.80s: %v, want %q", c.body, err, c.fault)
		}
	}
}

func TestBetter(t *testing.T) {
	order := []State{Ready, Draining, Restarting, Spawning, Lost, Failed, Gated, Shutdown, "no such state"}
	for a, s := range order {
		for b, u := range order {
			if got := s.Better(u); got != (a < b) {
				t.Errorf("%q.Better(%q) = %v", s, u, got)
			}
		}
	}
}

// FuzzParseBeat: a parsed heartbeat is within its bounds, and a Monitor processes it safely.
func FuzzParseBeat(f *testing.F) {
	f.Add([]byte(`{"id":"weather","version":"1.0.0","instance":"n1","seq":3,"interval_ms":15000,"state":"ready"}`))
	f.Add([]byte(`{"id":"weather","uptime_secs":-9223372036854775808,"seq":18446744073709551615}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := ParseBeat(data)
		if err != nil {
			return
		}
		if b.ID == "" || !b.State.Valid() || CheckInstance(b.Instance) != nil {
			t.Errorf("%+v", b)
		}
		m := NewMonitor(Config{})
		m.Observe(b, t0)
		m.Observe(b, at(1))
		m.Expire(at(2))
		if i, ok := m.Instance(b.ID, b.Instance); !ok || i.Interval < MinInterval || i.Interval > MaxInterval || i.Uptime < 0 {
			t.Errorf("%+v", i)
		}
		if _, err := json.Marshal(b); err != nil {
			t.Error(err)
		}
	})
}
