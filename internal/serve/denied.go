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

// NATS tells of a subscription that the user has no permission for later, apart from the call that made it, and as
// text. A service that took no notice would call itself ready and hear nothing.

// A service that may not listen tries again, after a pause that doubles: each try is a line in two logs.
const (
	minDeniedPause = 250 * time.Millisecond
	maxDeniedPause = time.Minute
)

func (n *Publisher) denied(subject string) {
	n.streams.mu.Lock()
	defer n.streams.mu.Unlock()
	for s := range n.streams.services {
		a := s.slot.Announced()
		if sp := wire.Prefix(a.SubjectPrefix); subject == sp.RPC(a.ID) || subject == sp.InstanceRPC(a.ID, a.Instance) {
			s.tell(fmt.Sprintf("NATS does not let it listen on %s; see its user's permissions", subject))
		}
	}
}

// tell has attend know why the service hears nothing, or not all.
func (s *service) tell(reason string) {
	select {
	case s.deaf <- reason:
	default: // one is enough
	}
}

// attend reports that the service is ready, or why it cannot be, until ctx ends.
func (s *service) attend(ctx context.Context) {
	ready := s.opt.OnReady
	reason := s.deafSoon(ctx)
	for pause := minDeniedPause; ctx.Err() == nil; pause = min(2*pause, maxDeniedPause) {
		if reason == "" {
			pause = minDeniedPause
			if s.slot.Apply(instance.Event{Kind: instance.Ready}) && ready != nil {
				ready()
				ready = nil
			}
			select {
			case reason = <-s.deaf:
			case <-ctx.Done():
				return
			}
		}
		s.slot.Apply(instance.Event{Kind: instance.Denied, Reason: reason})
		reason = s.listenAgain(ctx, pause)
	}
}

// deafSoon is why the service does not hear what it has just subscribed to, "" if it does. A refusal came before the
// answer to the flush, but may be on its way through the connection's callbacks.
func (s *service) deafSoon(ctx context.Context) (reason string) {
	wait := time.Duration(0)
	if errors.Is(s.nc.LastError(), nats.ErrPermissionViolation) { // may be anybody's
		wait = 200 * time.Millisecond
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case reason = <-s.deaf:
	case <-ctx.Done():
	case <-t.C:
	}
	return reason
}

// listenAgain subscribes anew, after a pause or a reconnect, which may have brought other permissions, and returns why
// it is still deaf, if it is. It waits for a connection: without one nothing is denied, and nothing can be unsubscribed.
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
	select {
	case <-s.deaf: // in the tries before
	default:
	}
	if err := s.resume(); err != nil {
		return err.Error()
	}
	return s.deafSoon(ctx)
}
