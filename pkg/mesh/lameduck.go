package mesh

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
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
// New calls are held, and services unsubscribed, until what is in flight is answered, but for no longer than half
// a second; then the connection moves, which takes milliseconds. One that has no services, only callers, begins a
// quarter of a second after the others. A call that takes longer goes on: its answer is
// lost only if it is sent in those milliseconds, or if the new server does not let the service answer what it was
// asked over the old one (allow_responses). Where no other server can be reached, nothing moves: the old one lets
// its connections live for a while yet, and there is nothing better.
type LameDuck struct {
	asked      atomic.Int64         // clients' calls in flight
	gate       atomic.Pointer[gate] // where new calls of clients wait; nil, and they need not
	publishing sync.RWMutex         // held for writing: no answers of services, either

	mu     sync.Mutex
	nodes  map[*Node]struct{}
	moving bool   // it moves
	left   string // the server that it moves away from, by its id
	next   string // another one that has said meanwhile that it will leave
}

type gate struct{ open chan struct{} }

// The times of a move. Callers of a service that is alone bridge them by trying again.
const (
	moveWait  = 500 * time.Millisecond // for calls in flight
	moveReach = 2 * time.Second        // for the other server
	moveAfter = 250 * time.Millisecond // of callers, for the services of their server to leave it first
)

// Option has a connection tell d of its server's lame-duck mode. A nats.LameDuckModeHandler that was set before it
// is called first; one that is set after it takes its place.
func (d *LameDuck) Option() nats.Option {
	return func(o *nats.Options) error {
		before := o.LameDuckModeHandler
		o.LameDuckModeHandler = func(nc *nats.Conn) {
			if before != nil {
				before(nc)
			}
			// Owned by the connection: ends when it is closed or has moved, and in any case within seconds. The
			// handler itself cannot wait, for the connection's other callbacks would wait behind it.
			go d.move(nc)
		}
		return nil
	}
}

// move moves away from the server that says it leaves, and from the next one if that says so meanwhile.
func (d *LameDuck) move(nc *nats.Conn) {
	server := nc.ConnectedServerId()
	d.mu.Lock()
	if d.moving {
		if server != d.left { // or it was said twice
			d.next = server
		}
		d.mu.Unlock()
		return
	}
	d.moving, d.left = true, server
	d.mu.Unlock()
	for more := true; more; {
		d.moveOnce(nc)
		server := nc.ConnectedServerId()
		d.mu.Lock()
		more = server != "" && server == d.next
		d.moving, d.left, d.next = more, server, ""
		d.mu.Unlock()
	}
}

func (d *LameDuck) moveOnce(nc *nats.Conn) {
	closed := nc.StatusChanged(nats.CLOSED)
	defer nc.RemoveStatusListener(closed)
	if len(d.services()) == 0 {
		// From here a call gets to a service that is still here, or one that has moved. From the other server it could
		// be on the route just when the service leaves, and be lost.
		soon[struct{}](nil, closed, moveAfter)
	}
	// A connection that drains, or has lost its server already, is left to that.
	if nc.Status() != nats.CONNECTED || !otherServer(nc) { // IsConnected is true of one that drains, too
		return
	}
	g := &gate{make(chan struct{})}
	d.gate.Store(g)
	services := d.services()
	before := nc.NumSubscriptions()
	paused := 0
	for _, s := range services {
		if s.pause() {
			paused++
		}
	}
	// Behind a round trip and a barrier, all that the server had sent by then was taken up.
	_ = nc.FlushTimeout(time.Second) // if it cannot be reached any more, there is no order to keep
	taken := make(chan struct{})
	if nc.Barrier(func() { close(taken) }) == nil {
		soon(taken, closed, time.Second)
	}
	d.settle(nc, services, before-paused*microSubscriptions)
	d.reconnect(nc, closed)
	d.gate.Store(nil)
	close(g.open)
	for _, s := range services {
		if err := s.resume(); err != nil {
			s.tell(err.Error()) // attend tries again
		}
	}
}

// reconnect gives the connection to another server.
func (d *LameDuck) reconnect(nc *nats.Conn, closed <-chan nats.Status) {
	d.publishing.Lock()
	held := true
	release := func() {
		if held {
			held = false
			d.publishing.Unlock()
		}
	}
	defer release()
	_ = nc.FlushTimeout(time.Second)
	connected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(connected)
	if nc.Status() != nats.CONNECTED || nc.ForceReconnect() != nil { // drained or closed meanwhile, or on its way by itself
		return
	}
	if nc.Opts.ReconnectBufSize >= 0 { // answers are kept for the new server
		release()
	}
	soon(connected, closed, moveReach)
}

// otherServer reports whether some server takes connections to which nc could go. Its own does not any more when
// it says that it will leave. A name can lead to several servers, so this is tried, and not concluded from a list.
func otherServer(nc *nats.Conn) bool {
	if nc.Opts.InProcessServer != nil {
		return false
	}
	dial := (&net.Dialer{Timeout: moveWait}).Dial
	if custom := nc.Opts.CustomDialer; custom != nil {
		dial = custom.Dial
	}
	for _, server := range nc.Servers() {
		u, err := url.Parse(server)
		if err == nil && !nc.IsClosed() && reaches(dial, u.Host) {
			return true
		}
	}
	return false
}

// reaches reports whether a server takes a connection within moveWait. A dialer of somebody's own has a time-out of its
// own, too, which is for connections that there is more time for.
func reaches(dial func(network, address string) (net.Conn, error), address string) bool {
	reached := make(chan bool, 1)
	go func() { // ends with the dialer's time-out
		c, err := dial("tcp", address)
		if err == nil {
			c.Close()
		}
		reached <- err == nil
	}()
	t := time.NewTimer(moveWait)
	defer t.Stop()
	select {
	case is := <-reached:
		return is
	case <-t.C:
		return false
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

// soon waits for c, but not for long, nor for a connection that is closed.
func soon[T any](c <-chan T, closed <-chan nats.Status, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-c:
	case <-closed:
	case <-t.C:
	}
}

// settle waits until no call is in flight and the connection has no more than these subscriptions, for moveWait at
// most. A subscription is drained some time after its last message was taken up, and until it is, a new server
// would be sent it anew, and go on giving it calls when nobody here knows it any more.
func (d *LameDuck) settle(nc *nats.Conn, services []*service, subscriptions int) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(moveWait); time.Now().Before(deadline) && !nc.IsClosed(); <-tick.C {
		inflight := int(d.asked.Load())
		for _, s := range services {
			inflight += s.calls.len()
		}
		if inflight == 0 && nc.NumSubscriptions() <= subscriptions {
			return
		}
	}
}

// ask lets a client's call begin, or holds it while the connection moves, but not beyond ctx, whose error it
// returns then, nor beyond deadline, which ctx need not have: then it is context.DeadlineExceeded. answered is to be called when it has returned nil and nobody waits for the answer any more. Like
// the following, both take a nil d for none.
func (d *LameDuck) ask(ctx context.Context, deadline time.Time) error {
	if d == nil {
		return nil
	}
	for {
		d.asked.Add(1) // before the look at the gate: a move that closes it either is seen or counts this call
		g := d.gate.Load()
		if g == nil {
			return nil
		}
		d.asked.Add(-1)
		if err := g.wait(ctx, deadline); err != nil {
			return err
		}
	}
}

func (g *gate) wait(ctx context.Context, deadline time.Time) error {
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return context.DeadlineExceeded
	}
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

// pause takes a service off the mesh, until resume, unless it has been stopped for good; its calls in flight go on.
func (s *service) pause() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.svc == nil {
		return false
	}
	s.paused = true
	if err := s.slot.node.stop(s.svc); err != nil {
		s.slot.node.opt.Logger.Warn("could not stop a service", "extension", s.slot.ID(), "error", err)
	}
	return true
}

// resume puts a service on the mesh again that was paused, unless it has been stopped for good since. After an error it
// is still paused.
func (s *service) resume() error {
	added, err := s.readd()
	if err != nil {
		err = fmt.Errorf("it could not be put on the mesh again: %w", err)
		s.slot.node.opt.Logger.Error("a service is off the mesh", "extension", s.slot.ID(), "error", err)
		return err
	}
	if added && s.nc.IsConnected() {
		_ = s.nc.FlushTimeout(time.Second) // its callers try again until the server has seen it
	}
	return nil
}

func (s *service) readd() (added bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.svc == nil || !s.paused {
		return false, nil
	}
	if !s.svc.isStopped() { // pause could not, or the connection is to come back yet
		if err := s.slot.node.stop(s.svc); err != nil {
			return false, err
		}
	}
	svc, err := s.slot.node.addMicro(s.slot.Announced(), s.handle)
	if err != nil { // the connection is closed, or drains
		return false, err
	}
	s.svc, s.paused = svc, false
	return true, nil
}

// retire is the service that Serve has to stop for good.
func (s *service) retire() *microService {
	s.mu.Lock()
	defer s.mu.Unlock()
	svc := s.svc
	s.svc = nil
	return svc
}
