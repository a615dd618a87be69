package heartbeat

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ body, fault string }{
		{`{"id":"weather"}`, ""},
		{`{"id":"weather","state":"draining","unknown":[1]}`, ""},
		{`{"id":"weather","instance":"a-B_9","breaker":{"state":"open","retry_at":"2026-01-01T00:00:00Z"}}`, ""},
		{`{}`, `no "id"`},
		{`[]`, "cannot be decoded"},
		{`{"id":"weather","uptime_secs":12.34}`, "cannot be decoded: uptime_secs has the wrong type: number 12.34"},
		{`{"id":"weather","interval_ms":"2000"}`, "cannot be decoded: interval_ms has the wrong type: string"},
		{`{"id":"weather","state":"hungry"}`, "unknown state"},
		{`{"id":"weather","instance":"a.b"}`, "instance"},
		{`{"id":"weather","instance":"` + strings.Repeat("x", 65) + `"}`, "instance"},
		{`{"id":"weather","version":"` + strings.Repeat("x", 65) + `"}`, "version"},
		{`{"id":"weather","breaker":{"state":"ajar"}}`, "breaker state"},
		{`{"id":"` + strings.Repeat("x", MaxSize) + `"}`, "over the limit"},
	} {
		b, err := Parse([]byte(c.body))
		switch {
		case c.fault == "" && (err != nil || b.ID != "weather" || b.State == ""):
			t.Errorf("%.80s: %+v, %v", c.body, b, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%.80s: %v, want %q", c.body, err, c.fault)
		}
	}
}

// TestTimeStamp: a time stamp that cannot be read is none, and the rest of the heartbeat counts.
func TestTimeStamp(t *testing.T) {
	at := time.Date(2026, 11, 27, 17, 45, 0, 0, time.UTC)
	for ts, want := range map[string]time.Time{
		`"2026-11-27T17:45:00Z"`:       at,
		`"2026-11-27T18:45:00+01:00"`:  at,
		`"2026-11-27T17:45:00.123456"`: {}, // without a zone
		`1795801545000`:                {},
		`"yesterday"`:                  {},
		`{"s":1}`:                      {},
		`null`:                         {},
	} {
		b, err := Parse([]byte(`{"ts":` + ts + `,"id":"weather","seq":7}`))
		if err != nil || !b.TS.Equal(want) || b.Seq != 7 {
			t.Errorf("%s: %+v, %v", ts, b, err)
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

// FuzzParse: a parsed heartbeat is within its bounds.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"id":"weather","version":"1.0.0","instance":"n1","seq":3,"interval_ms":15000,"state":"ready"}`))
	f.Add([]byte(`{"id":"weather","uptime_secs":-9223372036854775808,"seq":18446744073709551615}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := Parse(data)
		if err != nil {
			return
		}
		if b.ID == "" || !b.State.Valid() || CheckInstance(b.Instance) != nil {
			t.Errorf("%+v", b)
		}
		if _, err := json.Marshal(b); err != nil {
			t.Error(err)
		}
	})
}
