package main

import (
	"context"
	"strings"
	"sync"
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

// explain is why err came about: the first violation, if there was one.
func (d *denials) explain(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil && d.first != nil {
		return d.first
	}
	return err
}

// watch is ctx for requests on subject, or on those that begin with it; it ends when NATS denies one.
func (d *denials) watch(ctx context.Context, subject string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, &waiter{subject, cancel}) // for as long as the session, which is one verb's
	return ctx, func() { cancel(nil) }
}
