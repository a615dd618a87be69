package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
)

// TestDenialsWatch ends the requests that a violation is about, and keeps nothing of those that are over.
func TestDenialsWatch(t *testing.T) {
	var d denials
	hit, done := d.watch(t.Context(), `a.b"`)
	other, otherDone := d.watch(t.Context(), `a"`)
	_, over := d.watch(t.Context(), `a.b"`)
	over()
	over() // once more changes nothing
	if len(d.waiting) != 2 {
		t.Errorf("%d wait, want 2", len(d.waiting))
	}
	violation := fmt.Errorf(`%w: Permissions Violation for Publish to "a.b"`, nats.ErrPermissionViolation)
	d.add(violation)
	if context.Cause(hit) != violation || other.Err() != nil {
		t.Errorf("the one it is about ended with %v, the other with %v", context.Cause(hit), other.Err())
	}
	done()
	otherDone()
	if len(d.waiting) != 0 {
		t.Errorf("%d wait when all is over", len(d.waiting))
	}
}
