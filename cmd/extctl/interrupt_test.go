package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestBenchInterrupted: what was measured is printed, without the calls that were given up, and nothing is where nothing
// was measured.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		flags    string
		measured bool
	}{
		"while it measures": {"--warm-up 1 --callers 4", true},
		"while it warms up": {"--warm-up 1000000", false},
	} {
		t.Run(name, func(t *testing.T) {
			b, stop, err := newBed(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(stop)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			calls := 0
			if err := b.answer(mesh.Prefix(mesh.DefaultPrefix).RPC("busy"), func(string, json.RawMessage) (string, *rpc.Error) {
				if calls++; calls == 300 {
					cancel()
				}
				return "{}", nil
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.kv.PutString(t.Context(), "spec.busy", `{"id":"busy","version":"1.0.0","tools":[{"name":"ext_busy_do","tool":"do"}]}`); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := extctl(ctx, b.url, append(strings.Fields("bench ext_busy_do --duration 5m --json"), strings.Fields(tt.flags)...)...)
			if code != exitInterrupted {
				t.Errorf("exit code %d, %s", code, stderr)
			}
			var r struct{ Calls, Failed int }
			if err := json.Unmarshal([]byte(stdout), &r); err != nil {
				t.Fatalf("%v: %s", err, stdout)
			}
			if (r.Calls > 0) != tt.measured || r.Failed != 0 || tt.measured != strings.Contains(stdout, "calls_per_sec") {
				t.Errorf("it prints %s", stdout)
			}
		})
	}
}

func TestStaleness(t *testing.T) {
	var s staleness
	for _, step := range []struct {
		age  time.Duration
		want string
	}{
		{0, ""},
		{staleAfter, ""},
		{staleAfter + time.Second, "no registry leads, the catalog is 11s old"},
		{staleAfter + time.Minute, ""},
		{time.Second, "a registry leads again"},
		{0, ""},
		{time.Hour, "no registry leads"},
	} {
		if got := s.note(step.age); step.want == "" && got != "" || !strings.Contains(got, step.want) {
			t.Errorf("at %s: %q, want %q", step.age, got, step.want)
		}
	}
}

// TestWhichInstance: who names an instance that is not there is told what is, and a bridge's word that it runs none is no
// mistake on the command line.
func TestWhichInstance(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.runsOn(t, "x", "b1", "b2")
	b.runsOn(t, "left", "b3")
	b.runsOn(t, "native")
	if err := b.answer(mesh.Prefix(mesh.DefaultPrefix).Control("b3"), func(string, json.RawMessage) (string, *rpc.Error) {
		return "", rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, `bridge b3 runs no extension "left"`)
	}); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"restart x --bridge nope":   "there is no such instance of x; there is on-b1 on bridge b1, on-b2 on bridge b2",
		"logs x --instance nope":    "there is no such instance of x; there is on-b1 on bridge b1, on-b2 on bridge b2",
		"drain native":              "no bridge runs such an instance of native",
		"restart left":              `bridge b3 runs no extension "left"`,
		"logs left":                 `bridge b3 runs no extension "left"`,
		"restart left --bridge b3 ": `bridge b3 runs no extension "left"`,
	} {
		code, _, stderr := extctl(t.Context(), b.url, strings.Fields(line)...)
		if code != exitNotFound || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %s; want 1 and %s", line, code, stderr, want)
		}
	}
}
