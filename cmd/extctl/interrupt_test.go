package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestBenchInterrupted: an interrupted bench prints its measurements without the cancelled calls. Without measurements it
// prints nothing.
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
			if err := b.answer(wire.Prefix(wire.DefaultPrefix).RPC("busy"), func(string, json.RawMessage) (string, *rpc.Error) {
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
		{health.StaleAfter, ""},
		{health.StaleAfter + time.Second, "no registry is leading; the catalog is 11s old"},
		{health.StaleAfter + time.Minute, ""},
		{time.Second, "the catalog is maintained again"},
		{0, ""},
		{time.Hour, "no registry is leading"},
	} {
		if got := s.note(step.age, true); step.want == "" && got != "" || !strings.Contains(got, step.want) {
			t.Errorf("at %s: %q, want %q", step.age, got, step.want)
		}
	}
}

// TestUnknownInstance: the error for an instance that does not exist lists those that do, and a bridge that no longer
// runs the instance is not a usage error.
func TestUnknownInstance(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.putExtension(t, "x", "b1", "b2")
	b.putExtension(t, "left", "b3")
	b.putExtension(t, "native")
	if err := b.answer(wire.Prefix(wire.DefaultPrefix).Control("b3"), func(string, json.RawMessage) (string, *rpc.Error) {
		return "", rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, `bridge b3 runs no extension "left"`)
	}); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"restart x --bridge nope":   "no such instance of x; its instances are on-b1 on bridge b1, on-b2 on bridge b2",
		"logs x --instance nope":    "no such instance of x; its instances are on-b1 on bridge b1, on-b2 on bridge b2",
		"drain native":              "no bridge runs an instance of native",
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
