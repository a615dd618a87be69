package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
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
