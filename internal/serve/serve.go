package serve

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// ServeOptions bound the calls of one ready life; the zero value means the defaults.
type Options struct {
	CallTimeout    time.Duration // for a call that names none; covers queueing, writing and answering. Default 30 s
	MaxCallTimeout time.Duration // the most that Ext-Timeout may ask for. Default 1 h
	MaxInflight    int           // calls at once; more are answered CodeOverloaded. Default 256
	DrainTimeout   time.Duration // how long calls in flight may take after ctx has ended; then their contexts end. Default 30 s

	// If not nil, called by Serve, which waits for them: OnReady when the slot is first said to be ready, for calls
	// arrive; OnRetired after ctx has ended, when none do any more and what is in flight has yet to finish.
	OnReady, OnRetired func()
}

func (o Options) withDefaults() Options {
	o.CallTimeout = cmp.Or(o.CallTimeout, 30*time.Second)
	o.MaxCallTimeout = cmp.Or(o.MaxCallTimeout, time.Hour)
	o.MaxInflight = cmp.Or(o.MaxInflight, 256)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	return o
}

// service is one ready life of a slot: the micro service that answers while it can take calls.
type service struct {
	slot    *Instance
	nc      *nats.Conn
	opt     Options
	h       rpc.Handler
	async   jsonrpc.AsyncHandler // h, if it can
	gathers jsonrpc.Flusher      // h, if it can
	ctx     context.Context      // of handlers; ends when draining is given up

	ackPrefix string // SP.<id>.ack.

	lastMethod atomic.Pointer[string]
	handlers   sync.WaitGroup
	closed     atomic.Bool
	idle       chan struct{} // poked when nothing is in flight any more
	calls      callList

	deaf chan string // why it does not hear calls, or not all

	// Of what begin began, for end.
	giveUp   context.CancelFunc // ends ctx
	cancels  *nats.Subscription
	acks     *nats.Subscription
	unlisten func() // to denials

	mu     sync.Mutex
	svc    *microService // nil when it has been stopped for good
	paused bool          // svc is stopped, or will be when the connection is back
}

// Serve puts the slot's micro service on the mesh, says that it is ready, and answers calls with h until ctx
// ends. The service is gone from the mesh first, so that nothing new arrives; then what is in flight
// finishes, for at most DrainTimeout; then Serve returns nil. Serve applies the events Serve, Ready and Denied; the
// owner applies End, Drain, Restart or Stop as soon as ctx has ended, after which Ready and Denied are refused.
//
// A handler whose time is up has its context ended and a second more. One that goes on regardless is left behind: its
// call is answered with CodeExited, and what it returns goes nowhere.
//
// Where NATS does not permit it to listen, the slot is failed instead of ready, with the subject in the reason, until
// a reconnect, or another try within a minute, finds it permitted. So is it where it could not be put on the mesh again
// after a move to another server.
//
// Handlers run side by side, each on its own goroutine unless h is a jsonrpc.AsyncHandler; their contexts end
// with the call's time. A panic is that call's CodeInternal.
func (slot *Instance) Serve(ctx context.Context, h rpc.Handler, opt Options) error {
	s, err := slot.begin(ctx, h, opt)
	if err != nil {
		return fmt.Errorf("serving %s: %w", slot.id, err)
	}
	s.attend(ctx)
	return s.end()
}

// begin makes the service of one ready life, whose calls are handled as soon as NATS lets it listen. After an error
// nothing of it is left.
func (slot *Instance) begin(ctx context.Context, h rpc.Handler, opt Options) (*service, error) {
	n, a := slot.node, slot.Announced()
	s := &service{slot: slot, nc: n.nc, opt: opt.withDefaults(), h: h, idle: make(chan struct{}, 1), deaf: make(chan string, 1)}
	s.ctx, s.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	s.async, _ = h.(jsonrpc.AsyncHandler)
	s.gathers, _ = h.(jsonrpc.Flusher)
	s.unlisten = n.listenForDenials()
	n.addService(s) // before it subscribes, or a denial would find nobody
	slot.Apply(instance.Event{Kind: instance.Serve})
	sp := wire.Prefix(a.SubjectPrefix)
	s.ackPrefix = sp.Ack(a.ID, "")
	var err error
	// Before the first call, or a cancellation or an acknowledgement could be lost.
	if s.cancels, err = n.nc.ChanSubscribe(sp.Cancel(a.ID), n.in); err == nil {
		s.acks, err = n.nc.ChanSubscribe(sp.Ack(a.ID, "*"), n.in)
	}
	if err == nil {
		err = s.enter(a)
	}
	if err != nil {
		s.unsubscribe()
		s.leaveNode()
		return nil, err
	}
	// A subscription that is still on its way is a missing responder for callers: say ready behind it.
	if err := s.flush(ctx, enterLimit); err != nil && ctx.Err() == nil {
		n.opt.Logger.Debug("not flushed yet", "extension", a.ID, "error", err)
	}
	return s, nil
}

// end is the other end of begin.
func (s *service) end() error {
	err := s.drain()
	s.unsubscribe()
	s.leaveNode()
	return err
}

// unsubscribe ends what begin subscribed to. An error means that the connection is closed, and the subscriptions with it.
func (s *service) unsubscribe() {
	for _, sub := range []*nats.Subscription{s.cancels, s.acks} {
		if sub != nil {
			_ = sub.Unsubscribe()
		}
	}
}

func (s *service) leaveNode() {
	s.slot.node.removeService(s)
	s.unlisten()
	s.giveUp()
}

// enter puts the service on the mesh for the first time.
func (s *service) enter(a wire.Announce) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	svc, err := s.slot.node.addMicro(a, s.handle)
	s.svc = svc
	return err
}

// drain is the order in which no call is lost: unsubscribe; wait until the server knows; wait until what it
// had sent by then was taken up; wait for that; send the answers.
func (s *service) drain() error {
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.DrainTimeout)
	defer cancel()
	err := s.slot.node.stop(s.retire())
	_ = s.flush(ctx, time.Second) // without a connection nothing comes any more, either
	select {
	case <-s.slot.node.takenUp():
	case <-ctx.Done():
	}
	if s.opt.OnRetired != nil {
		s.opt.OnRetired()
	}
	s.untilIdle(ctx)
	s.endCalls()
	_ = s.flush(context.WithoutCancel(s.ctx), time.Second) // best effort: answers that do not get out now get out later or not at all
	if err != nil {
		return fmt.Errorf("stopping the service: %w", err)
	}
	return nil
}

// untilIdle waits until no call is in flight, or ctx has ended.
func (s *service) untilIdle(ctx context.Context) {
	for s.calls.len() > 0 && ctx.Err() == nil {
		select {
		case <-s.idle:
		case <-ctx.Done():
		}
	}
}

// lastWord is how long calls have to end that have been told to.
const lastWord = time.Second

// endCalls ends what is still in flight: calls are told to end, and those whose handlers do not are ended for them.
func (s *service) endCalls() {
	s.closed.Store(true)
	s.calls.close()
	s.giveUp()
	s.calls.each(func(c *call) { c.cancel() })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), lastWord)
	defer cancel()
	s.untilIdle(ctx)
	n := 0
	s.calls.each(func(c *call) {
		if c.abandon() {
			n++
		}
	})
	s.handlers.Wait()
	if n > 0 {
		s.slot.node.opt.Logger.Warn("handlers go on although the service has stopped", "extension", s.slot.ID(), "handlers", n)
	}
}

// enterLimit is how long a service that nobody hears of yet waits for a server that is slow.
const enterLimit = 10 * time.Second

// flush waits until the server has seen what was sent, but no longer than limit: a server that is away will get
// it from the connection's buffer when it is back.
func (s *service) flush(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if s.nc.Status() != nats.CONNECTED {
		return nats.ErrConnectionReconnecting
	}
	return s.nc.FlushWithContext(ctx)
}
