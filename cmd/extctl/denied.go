package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// denials are the permission violations of a connection. NATS reports them separately from the request that caused
// one, so without this the request would wait for its timeout.
type denials struct {
	mu      sync.Mutex
	first   error
	waiting []*waiter

	inbox string                  // the prefix of the connection's reply subjects
	end   context.CancelCauseFunc // of the command, if it may not receive replies; may be nil
}

type waiter struct {
	subject string
	cancel  context.CancelCauseFunc
}

// add records a violation; its text has the subject in quotes.
func (d *denials) add(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if subject, ok := natsconn.DeniedSubscription(err); ok && d.end != nil && strings.HasPrefix(subject, d.inbox+".") {
		d.end(errInboxDenied) // no request can have a reply
	}
	if d.first == nil {
		d.first = err
	}
	for _, w := range d.waiting {
		if strings.Contains(err.Error(), `"`+w.subject) {
			w.cancel(err)
		}
	}
}

// explain returns the first violation if there is one and err only means that no reply arrived, otherwise err.
func (d *denials) explain(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first != nil && slices.ContainsFunc(noReplyErrors, func(s error) bool { return errors.Is(err, s) }) {
		return d.first
	}
	return err
}

// noReplyErrors are the errors that a missing reply results in.
var noReplyErrors = []error{
	context.Canceled, context.DeadlineExceeded, nats.ErrTimeout, rpc.CodeTimeout, rpc.CodeCancelled, mesh.ErrNoCatalog,
}

// endedBy returns the reason if NATS ended ctx: it denied a subject or closed the connection. It returns nil for a
// timeout, an interrupt, and while ctx is active.
func endedBy(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrConnectionClosed) {
		return err
	}
	return nil
}

// watch returns ctx for requests on subjects that begin with subject; it ends when NATS denies one of them.
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
