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
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Options limit the calls of one Serve; the zero value means the defaults.
type Options struct {
	CallTimeout    time.Duration // of a call without a timeout of its own; includes queueing, writing and answering. Default 30 s
	MaxCallTimeout time.Duration // the longest timeout that a caller may set. Default 1 h
	MaxInflight    int           // concurrent calls; further ones are answered with CodeOverloaded. Default 256
	DrainTimeout   time.Duration // how long calls in flight may take after ctx has ended; then their contexts end. Default 30 s

	// When it is closed, what callers have not received yet of large answers is not sent. Nil: never.
	Cut <-chan struct{}

	// Called by Serve if they are not nil: OnReady when the instance becomes ready for the first time; OnRetired after ctx
	// has ended, when new calls do not arrive any longer and those in flight are not complete yet.
	OnReady, OnRetired func()
}

func (o Options) withDefaults() Options {
	o.CallTimeout = cmp.Or(o.CallTimeout, 30*time.Second)
	o.MaxCallTimeout = cmp.Or(o.MaxCallTimeout, time.Hour)
	o.MaxInflight = cmp.Or(o.MaxInflight, 256)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	return o
}

// service is one run of Serve: the micro service of a process that can handle calls.
type service struct {
	inst    *Instance
	nc      *nats.Conn
	opt     Options
	h       rpc.Handler
	async   jsonrpc.AsyncHandler // h, if it implements this
	gathers jsonrpc.Flusher      // h, if it implements this
	ctx     context.Context      // of handlers; ends after the drain timeout

	ackPrefix string // SP.<id>.ack.

	idle  chan struct{} // a message when no call is in flight any longer
	calls callList

	denials    chan string // why it does not receive calls, or not all of them
	ackDenials chan string // why large answers end in the middle, which is less important

	subscriptions

	mu     sync.Mutex
	svc    *microService // nil after it was stopped finally
	paused bool          // svc is stopped, or will be after the reconnect
}

// subscriptions are set by the goroutine of Serve.
type subscriptions struct {
	cancels  *nats.Subscription
	acks     atomic.Pointer[nats.Subscription]
	denied   atomic.Bool        // NATS has denied one of these
	unlisten func()             // to denials
	giveUp   context.CancelFunc // ends the context of handlers
}

// Serve subscribes the instance's micro service, reports it as ready, and handles calls with h until ctx ends. It
// unsubscribes first, so that no new calls arrive; then it completes the calls in flight, for at most DrainTimeout, and
// returns nil. Serve applies the events Serve, Ready and Denied; the owner applies End, Drain, Restart or Stop as soon as
// ctx has ended, after which Ready and Denied are refused.
//
// When the time of a call is over, the context of its handler ends. When DrainTimeout is over, the contexts of all handlers
// end, and they have one more second. The call of one that does not return then is answered with CodeExited, and its result
// is dropped.
//
// If NATS does not permit a subscription, the instance is failed instead of ready, with the subject in the reason, until it
// is permitted after a reconnect or by a try within a minute. This needs a connection of package natsconn that still
// has its error handler. The instance is also failed if it cannot subscribe again after a move to another server.
//
// Handlers run concurrently, each on its own goroutine unless h is a jsonrpc.AsyncHandler; their contexts end with the time
// of the call. A panic is answered with CodeInternal.
func (inst *Instance) Serve(ctx context.Context, h rpc.Handler, opt Options) error {
	s, err := inst.begin(ctx, h, opt)
	if err != nil {
		return fmt.Errorf("serving %s: %w", inst.id, err)
	}
	s.attend(ctx)
	return s.end()
}

// begin starts the service; its calls are handled as soon as NATS permits the subscription. After an error nothing is left
// of it.
func (inst *Instance) begin(ctx context.Context, h rpc.Handler, opt Options) (*service, error) {
	n, a := inst.pub, inst.Announced()
	s := &service{inst: inst, nc: n.nc, opt: opt.withDefaults(), h: h, idle: make(chan struct{}, 1), denials: make(chan string, 1), ackDenials: make(chan string, 1)}
	s.ctx, s.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	s.async, _ = h.(jsonrpc.AsyncHandler)
	s.gathers, _ = h.(jsonrpc.Flusher)
	n.streams.addService(s)
	s.unlisten = natsconn.TrafficOf(n.nc).OnDenied(func(subject string) { handleDenial(s, subject) }) // before it subscribes
	inst.Apply(instance.Event{Kind: instance.Serve})
	sp := wire.Prefix(a.SubjectPrefix)
	s.ackPrefix = sp.Ack(a.ID, "")
	err := subscribe(s, sp) // first, because a cancellation or an acknowledgement could arrive with the first call
	if err == nil {
		err = s.enter(a)
	}
	if err != nil {
		s.unsubscribe()
		s.leaveNode()
		return nil, err
	}
	// Without a flush, a caller that reads that the instance is ready may reach a server without the subscription.
	if err := s.flush(ctx, enterLimit); err != nil && ctx.Err() == nil {
		n.opt.Logger.Debug("not flushed yet", "extension", a.ID, "error", err)
	}
	return s, nil
}

// subscribe subscribes to cancellations and acknowledgements, again if NATS may have denied that.
func subscribe(s *service, sp wire.Prefix) error {
	s.unsubscribe()
	n, id := s.inst.pub, s.inst.ID()
	cancels, err := n.nc.ChanSubscribe(sp.Cancel(id), n.in)
	if err != nil {
		return err
	}
	s.cancels = cancels
	acks, err := n.nc.ChanSubscribe(sp.Ack(id, "*"), n.in)
	if err == nil {
		s.acks.Store(acks)
	}
	return err
}

// end reverses begin.
func (s *service) end() error {
	err := s.drain()
	s.unsubscribe()
	s.leaveNode()
	return err
}

// unsubscribe ends the subscriptions of subscribe. An error means that the connection is closed, and with it the subscriptions.
func (s *service) unsubscribe() {
	for _, sub := range []*nats.Subscription{s.cancels, s.acks.Load()} {
		if sub != nil {
			_ = sub.Unsubscribe()
		}
	}
}

func (s *service) leaveNode() {
	s.inst.pub.streams.removeService(s)
	s.unlisten()
	s.giveUp()
}

// enter subscribes the service for the first time.
func (s *service) enter(a wire.Announce) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	svc, err := s.inst.pub.addMicro(a, s.handle)
	s.svc = svc
	return err
}

// takenUpTimeout limits how long drain waits for the connection's subscriptions. A request that is still queued then is answered
// with unavailable, ran "no".
const takenUpTimeout = 2 * time.Second

// drain stops the service without losing a call: unsubscribe, wait until the server has processed that and everything that
// it had sent is handled, complete the calls, send the answers.
func (s *service) drain() error {
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.DrainTimeout)
	defer cancel()
	svc := s.retire()
	err := svc.stop()
	handled := s.flush(ctx, time.Second) == nil || !s.nc.IsConnected() // without a connection nothing more arrives
	select {
	case <-s.inst.pub.takenUp():
		if handled {
			svc.forget()
		}
	case <-time.After(takenUpTimeout): // another subscription of the connection is busy; the service's own never block
	case <-ctx.Done():
	}
	if s.opt.OnRetired != nil {
		s.opt.OnRetired()
	}
	s.untilIdle(ctx)
	s.endCalls()
	_ = s.flush(context.WithoutCancel(s.ctx), time.Second) // best effort: answers that cannot be sent now are sent later or not at all
	if !handled {                                          // the server was slow; what it has sent until now gets a refusal
		select {
		case <-s.inst.pub.takenUp():
			svc.forget()
		case <-time.After(takenUpTimeout):
		}
	}
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

// endTimeout is the time that handlers have to return after their contexts have ended.
const endTimeout = time.Second

// endCalls ends the calls in flight: it ends their contexts, and answers the calls of handlers that do not return.
func (s *service) endCalls() {
	s.calls.close()
	s.giveUp()
	s.calls.each(func(c *call) { c.cancel() })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), endTimeout)
	defer cancel()
	s.untilIdle(ctx)
	n := 0
	s.calls.each(func(c *call) {
		if c.abandon() {
			n++
		}
	})
	s.untilIdle(context.WithoutCancel(s.ctx)) // the answers of the calls that are left are being sent
	if n > 0 {
		s.inst.pub.opt.Logger.Warn("handlers are still running after the service has stopped", "extension", s.inst.ID(), "handlers", n)
	}
}

// enterLimit is the time that a new service waits for a slow server.
const enterLimit = 10 * time.Second

// flush waits until the server has processed what was sent, at most for limit. Without a connection the data are sent from
// the buffer after the reconnect.
func (s *service) flush(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if s.nc.Status() != nats.CONNECTED {
		return nats.ErrConnectionReconnecting
	}
	return s.nc.FlushWithContext(ctx)
}
