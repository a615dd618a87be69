package natsconn

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	defaultWait = 500 * time.Millisecond
	moveReach   = 2 * time.Second        // for the reconnect
	dialProbe   = 500 * time.Millisecond // for each server of the list
	otherWithin = 2 * time.Second        // for another server: it may be starting, or not be in the list yet
)

// Traffic is what is in flight on one connection of this package. When the server announces lame duck mode
// (nats-server --signal ldm), the connection moves to another server without losing it: services unsubscribe and finish,
// requests in flight complete, new ones wait, and then the connection is made again. Without that the server closes the
// connection later, and what is on the wire at that moment is lost. The methods of a nil Traffic do nothing.
type Traffic struct {
	requests atomic.Int64                  // in flight
	gate     atomic.Pointer[chan struct{}] // new requests wait until it is closed; nil: the connection does not move
	services sync.Map                      // *func(time.Time) func(): arguments of OnMove
	onDenied sync.Map                      // *func(string): arguments of OnDenied
	moving   sync.Mutex                    // held during a move
	wait     time.Duration                 // 0: defaultWait; moving guards it
	dialing  atomic.Bool
	denials  denials
}

// Dialing reports whether the connection is being made, and the server has not sent anything yet. Meanwhile nats.go holds a
// lock that almost all methods of nats.Conn need, for seconds if the server or its host does not answer.
func (t *Traffic) Dialing() bool { return t != nil && t.dialing.Load() }

// SetWait limits how long a move waits for the calls of a service that are in flight; for all services, and the requests in
// flight, it waits up to twice as long. What is in flight then is lost. The default is 500 ms: new requests wait for up to 1 s.
func (t *Traffic) SetWait(d time.Duration) {
	if t == nil {
		return
	}
	t.moving.Lock()
	defer t.moving.Unlock()
	t.wait = d
}

// TrafficOf returns the traffic of nc, nil if nc is nil or its dialer is not of this package.
func TrafficOf(nc *nats.Conn) *Traffic {
	if nc == nil {
		return nil
	}
	if d, ok := nc.Opts.CustomDialer.(*dialer); ok {
		return &d.traffic
	}
	return nil
}

// Begin counts a request until End. During a move it first waits, but not beyond ctx, whose error it returns then, nor
// beyond deadline, for which it returns context.DeadlineExceeded. After an error there must be no End.
func (t *Traffic) Begin(ctx context.Context, deadline time.Time) error {
	for t != nil {
		t.requests.Add(1) // before the gate is loaded: either the move counts this request, or this request waits
		gate := t.gate.Load()
		if gate == nil {
			return nil
		}
		t.requests.Add(-1)
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-*gate:
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return context.DeadlineExceeded
		}
	}
	return nil
}

// End ends what Begin began.
func (t *Traffic) End() {
	if t != nil {
		t.requests.Add(-1)
	}
}

// OnMove registers services until remove. Before the connection moves, pause unsubscribes them and waits for their calls,
// at most until the time given; after the move, resume subscribes them.
func (t *Traffic) OnMove(pause func(until time.Time) (resume func())) (remove func()) {
	if t == nil {
		return func() {}
	}
	t.services.Store(&pause, nil)
	return func() { t.services.Delete(&pause) }
}

// move moves nc away from the server with this id. It does nothing if the connection is closing, is on another server
// already, or if no other server accepts connections within otherWithin.
func (t *Traffic) move(nc *nats.Conn, server string) {
	t.moving.Lock()
	defer t.moving.Unlock()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		if nc.Status() != nats.CONNECTED || nc.ConnectedServerId() != server {
			return
		}
		if otherServer(nc) {
			break
		}
		if time.Since(began) > otherWithin {
			return
		}
	}
	gate := make(chan struct{})
	t.gate.Store(&gate)
	defer close(gate)
	defer t.gate.Store(nil)
	var resumes []func()
	wait := cmp.Or(t.wait, defaultWait)
	until := time.Now().Add(2 * wait)
	t.services.Range(func(pause, _ any) bool { // one after the other, because they count the subscriptions
		one := time.Now().Add(min(wait, time.Until(until)))
		resumes = append(resumes, (*pause.(*func(time.Time) func()))(one))
		return true
	})
	tick.Reset(time.Millisecond)
	for t.requests.Load() > 0 && time.Now().Before(until) && !nc.IsClosed() {
		<-tick.C
	}
	_ = nc.FlushTimeout(time.Second) // the server could drop what it has not read when the connection is closed
	changed := nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer nc.RemoveStatusListener(changed)
	if nc.Status() == nats.CONNECTED && nc.ForceReconnect() == nil {
		timer := time.NewTimer(moveReach)
		defer timer.Stop()
		select {
		case <-changed:
		case <-timer.C:
		}
	}
	for _, resume := range resumes {
		resume()
	}
}

// otherServer reports whether another server accepts connections. A server in lame duck mode no longer does. The list of
// servers alone is not sufficient: a name in it may lead to one server or to several.
func otherServer(nc *nats.Conn) bool {
	for _, server := range nc.Servers() {
		u, err := url.Parse(server)
		if err != nil {
			continue
		}
		if c, err := net.DialTimeout("tcp", u.Host, dialProbe); err == nil {
			c.Close()
			return true
		}
	}
	return false
}
