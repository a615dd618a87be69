package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/events"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// recorder is a registry that answers events.
type recorder struct {
	mu       sync.Mutex
	log      events.Log
	revision uint64
}

func (r *recorder) changed(key, old, now string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revision++
	r.log.Changed(key, []byte(old), []byte(now), r.revision, at)
}

func (r *recorder) answer(_ string, params json.RawMessage) (string, *rpc.Error) {
	var q events.Query
	if err := json.Unmarshal(params, &q); err != nil {
		return "", rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "%v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.log.Answer(q, 1<<20)
	a.CatalogID, a.Registry = "c", "r1"
	text, err := json.Marshal(a)
	if err != nil {
		return "", rpc.Errorf(rpc.CodeInternal, rpc.RanNo, "%v", err)
	}
	return string(text), nil
}

// eventTime is the column TIME, which has the date of an event of another day.
var eventTime = regexp.MustCompile(`^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d `)

// TestEvents lists what a registry has recorded.
func TestEvents(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.putExtension(t, "hello", "b1")
	r, now := &recorder{}, time.Now()
	r.log.Start(now.Add(-time.Hour), []byte(`{"name":"r0","instance":"0"}`))
	ready := `{"instances":[{"instance":"i1","bridge":"b1","state":"ready","restarts":2}]}`
	exited := `{"instances":[{"instance":"i1","bridge":"b1","state":"restarting","restarts":1,"reason":"signal \u001bKILL"}]}`
	r.changed("state.hello", "", exited, now.Add(-50*time.Minute))
	r.changed("state.hello", exited, ready, now.Add(-40*time.Minute))
	r.changed(wire.KeyLease, "", `{"name":"r1","instance":"1"}`, now.Add(-30*time.Minute))
	r.changed("host.b1", `{"state":"ready"}`, `{"state":"lost","reason":"is gone"}`, now.Add(-20*time.Minute))
	if err := b.answer(wire.Prefix(wire.DefaultPrefix).RegistryRPC(), r.answer); err != nil {
		t.Fatal(err)
	}
	all := []string{"instance hello b1 new → restarting signal ?KILL", "instance hello b1 restarting → ready 2 restarts", "leader r1 - r0 → r1 -", "host b1 b1 ready → lost is gone"}
	for line, want := range map[string][]string{
		"events":                                 all,
		"events hello":                           all[:2],
		"events --since 35m":                     all[2:],
		"events -n 1":                            all[3:],
		"events --kind leader":                   all[2:3],
		"events --bridge b1":                     {all[0], all[1], all[3]},
		"events hello --since 1m":                nil,
		"events --bridge b2 --kind host -o wide": nil,
	} {
		code, stdout, stderr := extctl(t.Context(), b.url, strings.Fields(line)...)
		var got []string
		for row := range strings.Lines(stdout) {
			if cells := strings.Fields(row); cells[0] != "TIME" {
				got = append(got, eventTime.ReplaceAllString(strings.Join(cells, " "), ""))
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || code != 0 || !strings.Contains(stderr, "the registry r1 records since ") {
			t.Errorf("%s: exit code %d, %q, want %q, %s", line, code, got, want, stderr)
		}
	}
	var out events.Answer
	if _, stdout, _ := extctl(t.Context(), b.url, "events", "--json", "-n", "2"); json.Unmarshal([]byte(stdout), &out) != nil || len(out.Events) != 2 || !out.More || out.Registry != "r1" {
		t.Errorf("%s", stdout)
	}
	for line, want := range map[string]string{
		"events --kind lunch":        `2 --kind "lunch": want instance, host or leader`,
		"events --since yesterday":   `2 --since "yesterday": want a duration`,
		"events -n 0":                "2 -n 0: want at least 1",
		"events x*":                  "4 ",
		"events hallo":               `1 no extension has the id "hallo"`,
		"events hallo --kind leader": `1 no extension has the id "hallo"`,
	} {
		code, stdout, stderr := extctl(t.Context(), b.url, strings.Fields(line)...)
		if number, text, _ := strings.Cut(want, " "); fmt.Sprint(code) != number || !strings.Contains(stdout+stderr, text) {
			t.Errorf("%s: exit code %d, %s%s", line, code, stdout, stderr)
		}
	}
}
