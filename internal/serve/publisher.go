package serve

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/wire"
)

// PublisherOptions are a Publisher's settings; the zero value works.
type PublisherOptions struct {
	Prefix            wire.Prefix   // default wire.DefaultPrefix
	HeartbeatInterval time.Duration // of Instance.Run; default wire.DefaultHeartbeatInterval
	Logger            *slog.Logger  // default: discard

	// Reserve is called with the number of bytes of each request that is accepted, and of each copy of a large answer, and
	// with a negative number when they are freed. If it returns false, the call is refused with rpc.CodeOverloaded. The
	// default is a limit of 256 MiB for this Publisher.
	Reserve func(n int64) bool
}

// defaultMemory is the limit of a Publisher without PublisherOptions.Reserve.
const defaultMemory = 256 << 20

// Publisher is shared by all instances of one program on one connection. Its Run method receives their cancellations and
// acknowledgements, answers requests for the program's micro services, and sends the frames of streaming calls.
type Publisher struct {
	nc  *nats.Conn
	opt PublisherOptions
	in  chan *nats.Msg // cancellations and acknowledgements

	calls   cancels
	streams streams

	barriers  barriers
	discovery *discovery
}

// NewPublisher returns a Publisher on nc. It starts nothing; Run must run as long as any instance serves calls.
func NewPublisher(nc *nats.Conn, opt PublisherOptions) *Publisher {
	if opt.Prefix == "" {
		opt.Prefix = wire.DefaultPrefix
	}
	if opt.HeartbeatInterval <= 0 {
		opt.HeartbeatInterval = wire.DefaultHeartbeatInterval
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.Reserve == nil {
		var used atomic.Int64
		opt.Reserve = func(n int64) bool {
			if used.Add(n) > defaultMemory && n > 0 {
				used.Add(-n)
				return false
			}
			return true
		}
	}
	return &Publisher{nc: nc, opt: opt, in: make(chan *nats.Msg, 4096), discovery: newDiscovery(nc, opt)}
}

// Run runs the Publisher until ctx ends, and then returns nil. It returns an error if it cannot subscribe, or
// nats.ErrConnectionClosed if the connection is closed first.
func (n *Publisher) Run(ctx context.Context) error {
	leave, err := n.discovery.listenForAll()
	if err != nil {
		return err
	}
	defer leave()
	var wg sync.WaitGroup
	defer wg.Wait()
	running, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { n.discovery.run(running) }) // owned by Run; ends with it
	defer natsconn.TrafficOf(n.nc).OnMove(n.pauseServices)()
	if err := n.read(ctx); ctx.Err() == nil {
		return err
	}
	return nil // the owner may close the connection at the same time
}

// read is the loop of Run.
func (n *Publisher) read(ctx context.Context) error {
	closed := n.nc.StatusChanged(nats.CLOSED)
	defer n.nc.RemoveStatusListener(closed)
	tick := time.NewTicker(wire.StreamTick)
	defer tick.Stop()
	if n.nc.IsClosed() { // before the listener existed
		return nats.ErrConnectionClosed
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-closed:
			return nats.ErrConnectionClosed
		case now := <-tick.C:
			n.streams.tick(now)
		case m := <-n.in:
			if token, ok := ackToken(m.Subject); ok {
				n.streams.acknowledged(m, token)
			} else {
				n.calls.receive(m.Data)
			}
		}
	}
}

// Join returns an instance of the extension that a describes. An empty a.Instance gets a new name, an empty
// a.SubjectPrefix the Publisher's prefix.
func (n *Publisher) Join(a wire.Announce) *Instance {
	a.SchemaVersion = wire.SchemaVersion
	if a.Instance == "" {
		a.Instance = nuid.Next()
	}
	if a.SubjectPrefix == "" {
		a.SubjectPrefix = string(n.opt.Prefix)
	}
	s := &Instance{pub: n, id: a.ID, instance: a.Instance, announce: a, born: time.Now()}
	s.machine = instance.New(s.notify)
	return s
}
