package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestDenialsExplain: a call that timed out may have run, whatever an earlier request of the command was denied.
func TestDenialsExplain(t *testing.T) {
	var d denials
	violation := fmt.Errorf(`%w: Permissions Violation for Publish to "ext.registry.rpc"`, nats.ErrPermissionViolation)
	d.add(violation)
	for err, want := range map[error]error{
		rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "x did not answer in time"): nil,
		rpc.Errorf(rpc.CodeCancelled, rpc.RanMaybe, "cancelled"):              nil,
		nats.ErrTimeout: violation,
	} {
		if want == nil {
			want = err
		}
		if got := d.explain(err); got != want {
			t.Errorf("%v is explained by %v", err, got)
		}
	}
}

// TestLogsWithLostBridge: the logs of one extension are shown although the only bridge of the other is gone, in either order.
func TestLogsWithLostBridge(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.putExtension(t, "x", "b1")
	b.putExtension(t, "y", "gone")
	if err := b.answer(wire.Prefix(wire.DefaultPrefix).Control("b1"), func(string, json.RawMessage) (string, *rpc.Error) {
		return `{"lines":[{"id":"x","bridge":"b1","instance":"i","ts":"2026-01-02T03:04:05Z","line":"of x"}]}`, nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, ids := range []string{"x y", "y x"} {
		code, stdout, stderr := extctl(t.Context(), b.url, strings.Fields("logs "+ids)...)
		if code != exitUnavailable || !strings.Contains(stdout, "of x") || !strings.Contains(stderr, "bridge gone is not available") {
			t.Errorf("logs %s: exit code %d, %s%s", ids, code, stdout, stderr)
		}
	}
	if code, stdout, _ := extctl(t.Context(), b.url, "logs", "y"); code != exitUnavailable || stdout != "" {
		t.Errorf("logs y: exit code %d, %s", code, stdout)
	}
}

// TestLastReady: an instance that refuses calls does not take the place of one that is drained.
func TestLastReady(t *testing.T) {
	open := &heartbeat.Breaker{State: heartbeat.BreakerOpen}
	a, b := wire.InstanceState{Instance: "a", State: heartbeat.Ready}, wire.InstanceState{Instance: "b", State: heartbeat.Ready}
	cut, lost := b, b
	cut.Breaker, lost.State = open, heartbeat.Lost
	for name, tt := range map[string]struct {
		all  []wire.InstanceState
		want bool
	}{
		"another one is ready": {[]wire.InstanceState{a, b}, false}, "it is cut off": {[]wire.InstanceState{a, cut}, true},
		"it is lost": {[]wire.InstanceState{lost, a}, true}, "none is ready": {[]wire.InstanceState{lost}, false},
	} {
		if got := lastReady(tt.all, func(i wire.InstanceState) bool { return i.Instance == "a" }); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestPingDenied: an extension that the user may not call is denied at once, and the others are pinged.
func TestPingDenied(t *testing.T) {
	t.Parallel()
	b, _ := bedWithUsers(t, server.User{Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"ext.secret.>"}}}})
	for _, id := range []string{"open", "secret"} {
		b.putExtension(t, id, "b1")
		if _, err := b.kv.PutString(t.Context(), "spec."+id, `{"id":"`+id+`","version":"1.0.0","subject":"ext.`+id+`.rpc","tools":[]}`); err != nil {
			t.Fatal(err)
		}
		if err := b.answer(wire.Prefix(wire.DefaultPrefix).RPC(id), func(string, json.RawMessage) (string, *rpc.Error) { return "{}", nil }); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	code, stdout, _ := extctl(t.Context(), b.url, "ping")
	if lines := strings.Split(stdout, "\n"); code != exitDenied || len(lines) < 3 || !strings.Contains(lines[1], "ok") || !strings.Contains(lines[2], "none") {
		t.Errorf("ping: exit code %d\n%s", code, stdout)
	}
	if code, _, stderr := extctl(t.Context(), b.url, "ping", "secret"); code != exitDenied || strings.Contains(stderr, "did not answer in time") {
		t.Errorf("ping secret: exit code %d, %s", code, stderr)
	}
	t.Logf("both took %v", time.Since(began))
}

// TestRestartWithReconnects: polls that fail for a while do not end a rolling restart.
func TestRestartWithReconnects(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	f := newFakeFleet(t, b, "x", wire.InstanceState{Instance: "one", Bridge: "b1", State: heartbeat.Ready}, wire.InstanceState{Instance: "two", Bridge: "b2", State: heartbeat.Ready})
	f.failing = 2
	if code, stdout, stderr := extctl(t.Context(), b.url, "restart", "x"); code != 0 || strings.Count(stdout, "ready after") != 2 {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

// TestRestartWaitJSON: if the wait fails, the error is the only object.
func TestRestartWaitJSON(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	f := newFakeFleet(t, b, "x", wire.InstanceState{Instance: "one", Bridge: "b1", State: heartbeat.Ready}, wire.InstanceState{Instance: "two", Bridge: "b2", State: heartbeat.Ready})
	f.shown = heartbeat.Spawning // and never ready
	if !withTimeouts(func(timeout string) bool {
		code, stdout, stderr := extctl(t.Context(), b.url, "restart", "x", "--wait", "--json", "--timeout", timeout)
		if code == exitOK || strings.Count(stdout, "\n") > 1 || !json.Valid([]byte(stdout)) {
			t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
		}
		return code == exitTimeout && len(f.requests()) == 2 // it was waiting
	}) {
		t.Error("it does not wait")
	}
}
