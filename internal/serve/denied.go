package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/wire"
)

// NATS reports a subscription without permission after the call that made it, and as text. Without this handling, the
// service would be shown as ready and receive nothing.

// A service without permission tries again, after a pause that doubles: each try is a line in two logs.
const (
	minDeniedPause = 250 * time.Millisecond
	maxDeniedPause = time.Minute
)

// handleDenial handles that NATS has denied a subscription of the connection, which may be that of another service.
func handleDenial(s *service, subject string) {
	a := s.inst.Announced()
	sp := wire.Prefix(a.SubjectPrefix)
	isAcks := subject == sp.Ack(a.ID, "*")
	if isAcks || subject == sp.Cancel(a.ID) {
		s.subscriptions.denied.Store(true)
	}
	reason := fmt.Sprintf("NATS does not permit the subscription to %s; check the permissions of its user", subject)
	switch {
	case subject == sp.RPC(a.ID), subject == sp.InstanceRPC(a.ID, a.Instance): // calls work without cancellations
		s.reportDenial(reason)
	case isAcks:
		select {
		case s.ackDenials <- reason:
		default: // one is enough
		}
	}
}

// reportDenial reports to attend why the service does not receive calls, or not all of them.
func (s *service) reportDenial(reason string) {
	select {
	case s.denials <- reason:
	default: // one is enough
	}
}

// attend reports that the service is ready, or why it cannot be, until ctx ends.
func (s *service) attend(ctx context.Context) {
	ready := s.opt.OnReady
	reason := s.awaitDenial(ctx)
	for pause := minDeniedPause; ctx.Err() == nil; pause = min(2*pause, maxDeniedPause) {
		if reason == "" {
			pause = minDeniedPause
			if s.inst.Apply(instance.Event{Kind: instance.Ready}) && ready != nil {
				ready()
				ready = nil
			}
			select {
			case reason = <-s.denials:
			case reason = <-s.ackDenials:
			case <-ctx.Done():
				return
			}
		}
		s.inst.Apply(instance.Event{Kind: instance.Denied, Reason: reason})
		reason = s.listenAgain(ctx, pause)
	}
}

// awaitDenial returns why the service does not receive what it has just subscribed to, "" if it does. A denial arrives
// before the answer to the flush, but may still be on its way through the callbacks of the connection.
func (s *service) awaitDenial(ctx context.Context) (reason string) {
	wait := time.Duration(0)
	if errors.Is(s.nc.LastError(), nats.ErrPermissionViolation) { // it may concern another subscription
		wait = 200 * time.Millisecond
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case reason = <-s.denials:
	case <-ctx.Done():
	case <-t.C:
		select {
		case reason = <-s.ackDenials:
		default:
		}
	}
	return reason
}

// listenAgain subscribes again, after a pause or a reconnect, which may have brought other permissions, and returns why the
// service still does not receive calls. It waits for a connection: without one nothing is denied, and nothing can be
// unsubscribed.
func (s *service) listenAgain(ctx context.Context, pause time.Duration) (reason string) {
	connected := s.nc.StatusChanged(nats.CONNECTED)
	defer s.nc.RemoveStatusListener(connected)
	t := time.NewTimer(pause)
	defer t.Stop()
	for waited := false; !waited || !s.nc.IsConnected(); {
		select {
		case <-t.C:
			waited = true
		case _, ok := <-connected:
			if waited = true; !ok { // the connection is closed
				connected = nil
			}
		case <-ctx.Done():
			return ""
		}
	}
	s.pause()
	for _, before := range []chan string{s.denials, s.ackDenials} { // in the tries before
		select {
		case <-before:
		default:
		}
	}
	if s.subscriptions.denied.Swap(false) {
		if err := subscribe(s, wire.Prefix(s.inst.Announced().SubjectPrefix)); err != nil {
			return err.Error()
		}
	}
	if err := s.resume(); err != nil {
		return err.Error()
	}
	return s.awaitDenial(ctx)
}
