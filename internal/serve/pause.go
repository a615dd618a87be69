package serve

import (
	"fmt"
	"time"
)

// pauseServices unsubscribes all services, so that NATS gives new calls to other instances, and waits until their calls
// in flight have ended, at most until the given time. The subscriptions have to be gone, too: nats.go removes one some time
// after its last message was handled, and until then a reconnect would subscribe it at the new server, which would
// deliver calls that nothing handles.
func (n *Publisher) pauseServices(until time.Time) (resume func()) {
	services := n.streams.list()
	subscriptions := n.nc.NumSubscriptions()
	for _, s := range services {
		if s.pause() {
			subscriptions -= microSubscriptions
		}
	}
	_ = n.nc.FlushTimeout(time.Second) // without a connection nothing more arrives
	limit := time.NewTimer(time.Until(until))
	defer limit.Stop()
	select {
	case <-n.takenUp():
	case <-limit.C:
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(until) && !n.nc.IsClosed() {
		inflight := 0
		for _, s := range services {
			inflight += s.calls.len()
		}
		if inflight == 0 && n.nc.NumSubscriptions() <= subscriptions {
			break
		}
		<-tick.C
	}
	return func() {
		for _, s := range services {
			if _, err := s.readd(); err != nil {
				s.reportDenial(err.Error()) // attend tries again
			}
		}
		n.awaitSubscriptions()
	}
}

// pause unsubscribes a service until resume, unless it has stopped finally. Its calls in flight continue.
func (s *service) pause() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.svc == nil {
		return false
	}
	s.paused = true
	if err := s.svc.stop(); err != nil {
		s.inst.pub.opt.Logger.Warn("could not unsubscribe a service", "extension", s.inst.ID(), "error", err)
	}
	return true
}

// resume subscribes a paused service again, and waits until the server has processed that.
func (s *service) resume() error {
	added, err := s.readd()
	if added {
		s.inst.pub.awaitSubscriptions()
	}
	return err
}

// awaitSubscriptions waits until the server has processed the subscriptions; callers retry meanwhile.
func (n *Publisher) awaitSubscriptions() {
	if n.nc.IsConnected() {
		_ = n.nc.FlushTimeout(time.Second)
	}
}

// readd subscribes a paused service again, unless it has stopped finally since. After an error it is still paused.
func (s *service) readd() (added bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("the service could not subscribe again: %w", err)
			s.inst.pub.opt.Logger.Error("a service is not subscribed; retrying", "extension", s.inst.ID(), "error", err)
		}
	}()
	if s.svc == nil || !s.paused {
		return false, nil
	}
	if !s.svc.isStopped() { // pause failed
		if err := s.svc.stop(); err != nil {
			return false, err
		}
	}
	svc, err := s.inst.pub.addMicro(s.inst.Announced(), s.handle)
	if err != nil { // the connection is closed or draining
		return false, err
	}
	s.svc, s.paused = svc, false
	return true, nil
}

// retire returns the micro service that Serve has to stop finally, and lets no later resume subscribe again.
func (s *service) retire() *microService {
	s.mu.Lock()
	defer s.mu.Unlock()
	svc := s.svc
	s.svc = nil
	return svc
}
