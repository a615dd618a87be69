package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestStats sums up what two bridges have counted.
func TestStats(t *testing.T) {
	t.Parallel()
	b, _, two := pastBed(t)
	two.Extension("hello").Ended(&calls.End{Method: "tools/none", Refused: true, Code: rpc.CodeMethodNotFound, At: time.Now()})
	for line, want := range map[string]string{
		"stats": "EXTENSION CALLS ERRORS ERRORS % P50 P99\ngoogle.mail 1 1 100.0 750 ms 995 ms\nhello 8 7 87.5 3.75 ms 283 s\n",
		"stats hello": "EXTENSION TOOL CALLS ERRORS ERRORS % P50 P99\n" +
			"hello _other 1 1 100.0 - -\nhello greet 7 6 85.7 3.75 ms 283 s\n",
		"stats google -o wide":  "EXTENSION TOOL CALLS ERRORS ERRORS % P50 P99\ngoogle.mail send 1 1 100.0 750 ms 995 ms\n",
		"stats -o name":         "google.mail\nhello\n",
		"stats --bridge b1":     "EXTENSION CALLS ERRORS ERRORS % P50 P99\nhello 4 3 75.0 3.75 ms 290 s\n",
		"stats google.calendar": "",
	} {
		if line == "stats google.calendar" {
			b.putExtension(t, "google.calendar", "b1")
		}
		code, stdout, stderr := extctl(t.Context(), b.url, strings.Fields(line)...)
		var got strings.Builder
		for row := range strings.Lines(stdout) {
			fmt.Fprintln(&got, strings.Join(strings.Fields(row), " "))
		}
		if got.String() != want || code != 0 {
			t.Errorf("%s: exit code %d, %s%s", line, code, got.String(), stderr)
		}
		if !strings.Contains(stderr, "calls since the start of the bridges, at ") {
			t.Errorf("%s: stderr %q", line, stderr)
		}
	}
	var out struct {
		Since      time.Time
		Extensions []usageJSON
	}
	_, stdout, _ := extctl(t.Context(), b.url, "stats", "--json")
	if err := json.Unmarshal([]byte(stdout), &out); err != nil || len(out.Extensions) != 2 || out.Extensions[1].Calls != 8 || out.Extensions[1].Failed != 7 ||
		len(out.Extensions[1].Tools) != 2 || out.Extensions[0].P50 != 750000 || out.Since.IsZero() {
		t.Errorf("%v, %s", err, stdout)
	}
	for line, want := range map[string]string{
		"stats --watch 1ms":      "2 --watch 1ms: want a duration from 100ms to 1h0m0s",
		"top --watch 0s":         "2 --watch 0s: want a duration",
		"top -o name":            "2 an endless output has the format table, wide or json",
		"stats hallo":            `1 no extension has the id "hallo"`,
		"stats x*":               "4 ",
		"top --bridge b9":        "10 bridge b9 is not available",
		"stats --watch 1s --wat": "2 unknown flag: --wat",
	} {
		code, stdout, stderr := extctl(t.Context(), b.url, strings.Fields(line)...)
		if number, text, _ := strings.Cut(want, " "); fmt.Sprint(code) != number || !strings.Contains(stderr, text) {
			t.Errorf("%s: exit code %d, %s%s", line, code, stdout, stderr)
		}
	}
	b.putHost(t, wire.Host{Bridge: "b3"})
	if err := b.answer(wire.Prefix(wire.DefaultPrefix).Control("b3"), func(string, json.RawMessage) (string, *rpc.Error) {
		return `{"since":"2026-01-02T03:04:05Z","bounds_us":[1,2],"tools":[]}`, nil
	}); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := extctl(t.Context(), b.url, "stats"); code != exitOther || !strings.Contains(stderr, "bridge b3 counts durations in other classes") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// TestStatsWatch: with --watch, the numbers are those since the table before.
func TestStatsWatch(t *testing.T) {
	t.Parallel()
	b, one, _ := pastBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	u := &upRun{done: make(chan int, 1)}
	go func() { // ends with cancel
		u.done <- run(ctx, []string{"stats", "--watch", "100ms", "--json", "--server", b.url}, nil, &u.out, &u.err, func(string) string { return "" })
	}()
	u.await(t, `"extensions":[`)
	one.Extension("hello").Ended(&calls.End{Tool: "greet", Took: time.Millisecond, At: time.Now()})
	u.await(t, `{"id":"hello","calls":1,"failed":0,"p50_us":750,"p99_us":995,"tools":[{"tool":"greet","calls":1,`)
	cancel()
	if code := <-u.done; code != exitInterrupted {
		t.Errorf("exit code %d, %s", code, u.err.String())
	}
}

// TestCounted: a bridge that has restarted counts from zero, and one that did not answer before is left out.
func TestCounted(t *testing.T) {
	l := calls.NewLog()
	l.Extension("x").Ended(&calls.End{Tool: "t", Took: time.Millisecond})
	answers := func(since time.Time, bridges ...string) (out []answer[calls.Stats]) {
		for _, name := range bridges {
			out = append(out, answer[calls.Stats]{controlJSON: controlJSON{Bridge: name}, parsed: calls.Stats{Since: since, Tools: l.Stats("")}})
		}
		return out
	}
	start := time.Unix(1, 0)
	before := sample{at: start, answers: answers(start, "b1", "b2")}
	l.Extension("x").Ended(&calls.End{Tool: "t", Took: time.Second})
	now := sample{at: start.Add(time.Second), answers: append(answers(start, "b1", "b3"), answers(start.Add(time.Second), "b2")...)}
	out := now.counted(&before)
	if e := out.Extensions; len(e) != 1 || e[0].Calls != 3 || e[0].took.Total() != 3 || out.IntervalMS != 1000 { // one of b1, two of b2
		t.Errorf("%+v", out)
	}
}

// TestBenchWithoutWarmUp: --warm-up 0 makes no calls that are not measured, except the first one.
func TestBenchWithoutWarmUp(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.putExtension(t, "x", "b1")
	if _, err := b.kv.PutString(t.Context(), "spec.x", `{"id":"x","version":"1.0.0","subject":"ext.x.rpc","tools":[{"name":"ext_x_y","tool":"y","input_schema":{"type":"object"}}]}`); err != nil {
		t.Fatal(err)
	}
	var made atomic.Int64
	if err := b.answer("ext.x.rpc", func(string, json.RawMessage) (string, *rpc.Error) { made.Add(1); return "{}", nil }); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := extctl(t.Context(), b.url, "bench", "ext_x_y", "--calls", "3", "--duration", "5m", "--warm-up", "0"); code != 0 || made.Load() != 4 {
		t.Errorf("exit code %d, %d calls, %s%s", code, made.Load(), stdout, stderr)
	}
}
