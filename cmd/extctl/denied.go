package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// denials are the permission violations of a connection. NATS reports them apart from the request that met one, which
// would otherwise wait until its time is out for an answer that cannot come.
type denials struct {
	mu      sync.Mutex
	first   error
	waiting []*waiter
}

type waiter struct {
	subject string
	cancel  context.CancelCauseFunc
}

// add takes in a violation; its text has the subject in quotes.
func (d *denials) add(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first == nil {
		d.first = err
	}
	for _, w := range d.waiting {
		if strings.Contains(err.Error(), `"`+w.subject) {
			w.cancel(err)
		}
	}
}

// explain is why err came about: the first violation, if there was one and err only says that no answer came.
func (d *denials) explain(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first != nil && slices.ContainsFunc(silences, func(s error) bool { return errors.Is(err, s) }) {
		return d.first
	}
	return err
}

// silences are what a missing answer looks like from here.
var silences = []error{
	context.Canceled, context.DeadlineExceeded, nats.ErrTimeout, rpc.CodeTimeout, rpc.CodeCancelled, mesh.ErrNoCatalog,
}

// endedBy is why ctx is over, if it is NATS that ended it: it denied something, or its connection is closed for good. It
// is nil for a time-out, an interrupt, and while ctx goes on.
func endedBy(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrConnectionClosed) {
		return err
	}
	return nil
}

// watch is ctx for requests on subject, or on those that begin with it; it ends when NATS denies one.
func (d *denials) watch(ctx context.Context, subject string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &waiter{subject, cancel}
	d.waiting = append(d.waiting, w)
	return ctx, func() {
		cancel(nil)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.waiting = slices.DeleteFunc(d.waiting, func(v *waiter) bool { return v == w })
	}
}
