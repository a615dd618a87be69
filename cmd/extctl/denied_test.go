package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestDenialsWatch: a violation ends the requests on its subject, and finished requests are removed from the list.
func TestDenialsWatch(t *testing.T) {
	var d denials
	hit, done := d.watch(t.Context(), `a.b"`)
	other, otherDone := d.watch(t.Context(), `a"`)
	_, over := d.watch(t.Context(), `a.b"`)
	over()
	over() // a second call has no effect
	if len(d.waiting) != 2 {
		t.Errorf("%d waiters, want 2", len(d.waiting))
	}
	violation := fmt.Errorf(`%w: Permissions Violation for Publish to "a.b"`, nats.ErrPermissionViolation)
	d.add(violation)
	if context.Cause(hit) != violation || other.Err() != nil {
		t.Errorf("the denied request ended with %v, the other with %v", context.Cause(hit), other.Err())
	}
	done()
	otherDone()
	if len(d.waiting) != 0 {
		t.Errorf("%d waiters at the end", len(d.waiting))
	}
}

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
