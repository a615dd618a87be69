package mesh

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// LameDuck moves what is on one connection to another server, in order, when its own says that it is about to go
// (lame-duck mode, as in nats-server --signal ldm). Without it the server closes the connection some time later,
// and the requests and answers that were on the wire just then are lost. The zero value is ready; one LameDuck is
// for one connection and for all that is on it:
//
//	var duck mesh.LameDuck
//	nc, err := nats.Connect(url, duck.Option())
//	client := mesh.NewClient(nc, mesh.ClientOptions{LameDuck: &duck})
//
// New calls are held, and services unsubscribed, until what is in flight is answered, but for no longer than
// moveWait; then the connection moves, which takes milliseconds. A call that takes longer than moveWait goes on:
// its answer is lost only if it is sent in those milliseconds, or if the new server does not let the service
// answer what it was asked over the old one (allow_responses).
type LameDuck struct {
	calls      sync.RWMutex // held for writing: no new calls of clients
	publishing sync.RWMutex // held for writing: no answers of services, either
	asked      atomic.Int64 // clients' calls in flight

	moving sync.Mutex // held while it moves

	mu    sync.Mutex
	nodes map[*Node]struct{}
}

// moveWait is how long calls in flight are waited for before a connection moves. Callers of a service that is
// alone bridge that by trying again.
const moveWait = 500 * time.Millisecond

// Option has a connection tell d of its server's lame-duck mode. It takes the place of nats.LameDuckModeHandler.
func (d *LameDuck) Option() nats.Option {
	return nats.LameDuckModeHandler(func(nc *nats.Conn) {
		go d.move(nc) // ends within seconds: everything in it has a time-out
	})
}

func (d *LameDuck) move(nc *nats.Conn) {
	if !d.moving.TryLock() { // it was said twice
		return
	}
	defer d.moving.Unlock()
	if !nc.IsConnected() {
		return
	}
	services := d.services()
	d.calls.Lock()
	for _, s := range services {
		s.pause()
	}
	// Behind a round trip and a barrier, all that the server had sent by then was taken up.
	_ = nc.FlushTimeout(time.Second) // if it cannot be reached any more, there is no order to keep
	taken := make(chan struct{})
	if nc.Barrier(func() { close(taken) }) == nil {
		soon(taken, time.Second)
	}
	d.settle(services)
	d.publishing.Lock()
	_ = nc.FlushTimeout(time.Second)
	connected := nc.StatusChanged(nats.CONNECTED)
	if nc.ForceReconnect() == nil {
		soon(connected, 2*time.Second)
	}
	nc.RemoveStatusListener(connected)
	d.publishing.Unlock()
	d.calls.Unlock()
	for _, s := range services {
		s.resume()
	}
}

// services lists what d's nodes serve now.
func (d *LameDuck) services() (out []*service) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := range d.nodes {
		n.streams.mu.Lock()
		for s := range n.streams.services {
			out = append(out, s)
		}
		n.streams.mu.Unlock()
	}
	return out
}

func soon[T any](c <-chan T, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-c:
	case <-t.C:
	}
}

// settle waits until no call is in flight, for moveWait at most.
func (d *LameDuck) settle(services []*service) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(moveWait); time.Now().Before(deadline); <-tick.C {
		inflight := int(d.asked.Load())
		for _, s := range services {
			inflight += s.calls.len()
		}
		if inflight == 0 {
			return
		}
	}
}

// ask sends a client's request, for which answered is called when nobody waits any more. Like the following, it
// takes a nil d for none.
func (d *LameDuck) ask(nc *nats.Conn, m *nats.Msg) error {
	if d == nil {
		return nc.PublishMsg(m)
	}
	d.calls.RLock()
	defer d.calls.RUnlock()
	d.asked.Add(1)
	return nc.PublishMsg(m)
}

func (d *LameDuck) answered() {
	if d != nil {
		d.asked.Add(-1)
	}
}

// hold holds off a move, until release, while a service publishes.
func (d *LameDuck) hold() {
	if d != nil {
		d.publishing.RLock()
	}
}

func (d *LameDuck) release() {
	if d != nil {
		d.publishing.RUnlock()
	}
}

func (d *LameDuck) add(n *Node) (remove func()) {
	if d == nil {
		return func() {}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nodes == nil {
		d.nodes = map[*Node]struct{}{}
	}
	d.nodes[n] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.nodes, n)
	}
}

// pause takes a service off the mesh, until resume; its calls in flight go on.
func (s *service) pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.svc == nil {
		return
	}
	if err := s.svc.Stop(); err != nil {
		s.slot.node.opt.Logger.Warn("could not stop a service", "extension", s.slot.ID(), "error", err)
	}
}

// resume puts a service on the mesh again that was paused, unless it has been stopped for good since.
func (s *service) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.svc == nil || !s.svc.Stopped() {
		return
	}
	svc, err := s.add(s.slot.Announced())
	if err != nil {
		s.slot.node.opt.Logger.Error("a service could not be put on the mesh again", "extension", s.slot.ID(), "error", err)
		return
	}
	s.svc = svc
	_ = s.nc.FlushTimeout(time.Second) // its callers try again until the server has seen it
}

// retire is the service that Serve has to stop for good.
func (s *service) retire() micro.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	svc := s.svc
	s.svc = nil
	return svc
}
