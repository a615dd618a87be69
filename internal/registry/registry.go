package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
)

// Config is the configuration of a replica. The zero value works: identical processes need nothing except a NATS
// connection.
type Config struct {
	Prefix    wire.Prefix     // default mesh.DefaultPrefix
	Name      string          // name of this replica, for display; default the host name
	Version   string          // version of this program, for display; default "0.0.0"
	Heartbeat liveness.Config // interval, grace factor, forget-after
	Replicas  int             // replicas of the bucket; default 3 in a cluster, 1 on a single server
	LeaseTTL  time.Duration   // whole seconds; default 10 s in a cluster, 3 s on a single server
	Logger    *slog.Logger    // default: discard

	MemoryLimit int64 // bytes; bounds what is kept in memory; default GOMEMLIMIT, else the control group's limit, else the machine's memory
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, wire.Prefix(wire.DefaultPrefix))
	c.Version = cmp.Or(c.Version, "0.0.0")
	if c.Name == "" {
		c.Name, _ = os.Hostname() // for display only, so an error does not matter
		c.Name = cmp.Or(c.Name, "registry")
	}
	if c.MemoryLimit <= 0 {
		c.MemoryLimit = memoryLimit()
	}
	c.MemoryLimit = max(c.MemoryLimit, minMemory)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Registry is one replica. Create it with New and call Run once.
type Registry struct {
	cfg      Config
	nc       *nats.Conn
	instance string
	started  time.Time
	calls    chan func(*loop) // functions to run in the loop; see Registry.inLoop
}

// New returns a registry that uses nc and has not been started. The caller owns nc and should log its slow-consumer
// and permission errors; the registry handles reconnects.
func New(nc *nats.Conn, cfg Config) *Registry {
	return &Registry{cfg: cfg.withDefaults(), nc: nc, instance: nuid.Next(), calls: make(chan func(*loop))}
}

// Run calls New and Registry.Run.
func Run(ctx context.Context, nc *nats.Conn, cfg Config) error { return New(nc, cfg).Run(ctx) }

// Run serves until ctx is done. It then releases the lease, waits for everything that it started, and returns nil.
// Without JetStream it logs a warning and keeps its state in memory until JetStream is available. It returns an error
// only if the connection cannot be used at all.
func (r *Registry) Run(ctx context.Context) error {
	l, err := newLoop(r)
	if err != nil {
		return err
	}
	status := r.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	defer r.nc.RemoveStatusListener(status)
	r.started = time.Now()

	// The service starts first and stops last. The loop's subscription also matches the service's subject, so a
	// request that arrives while only the loop is subscribed would get neither an answer nor "no responders". The
	// loop outlives the service by the time that it takes to answer the last requests.
	looping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	svc, err := r.serve(looping)
	if err != nil {
		return err
	}
	defer func() { _ = svc.Stop() }() // the second Stop has no effect; an error means that the connection is closed
	if l.sub, err = r.subscribe(looping, l.in); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- l.run(looping, status) }() // owned by Run, which waits for ended
	select {
	case <-ctx.Done():
		_ = l.sub.Unsubscribe() // fails only on a closed connection
		// Wait until the server has processed the unsubscribe before the service stops. The server delivers a
		// request to one subscription after the other: if both were removed in between, it would find the loop's
		// subscription but no responder. The extra wait covers a server that is paused at that point.
		if r.flush(context.WithoutCancel(ctx)) {
			<-time.After(drainTime)
		}
		_ = svc.Stop()
		r.drain(context.WithoutCancel(ctx))
		stop()
		return <-ended
	case err = <-ended:
		_ = l.sub.Unsubscribe()
		return err
	}
}

// subscribe subscribes to all subjects of the registry and forwards the messages to in until ctx is done. It uses a
// callback because SubscribeSync and a channel subscription limit only the number of pending messages, to 65,536
// whatever the pending limits are. A mesh of 30,000 extensions exceeds that when all announce at once, and a flood of
// large messages fills the memory long before.
func (r *Registry) subscribe(ctx context.Context, in chan<- *nats.Msg) (*nats.Subscription, error) {
	sub, err := r.nc.Subscribe(string(r.cfg.Prefix)+".registry.>", func(m *nats.Msg) {
		select {
		case in <- m:
		case <-ctx.Done():
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribing to the registry's subjects: %w", err)
	}
	if err := sub.SetPendingLimits(r.cfg.maxQueued()); err != nil {
		_ = sub.Unsubscribe() // the connection outlives this registry
		return nil, fmt.Errorf("subscribing to the registry's subjects: %w", err)
	}
	return sub, nil
}

// drainTime is how long requests are still answered after the loop has unsubscribed.
const drainTime = 100 * time.Millisecond

// drain waits until the server has stopped routing requests to this replica and the pending ones are answered.
// micro's Service.Stop waits for neither.
func (r *Registry) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if r.flush(ctx) {
		_ = r.inLoop(ctx, func(*loop) {}) // runs after all earlier functions
	}
}

// flush reports whether the server confirms within a second that it has processed everything sent before.
func (r *Registry) flush(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return r.nc.FlushWithContext(ctx) == nil
}

// ErrStopped means that the registry is not running.
var ErrStopped = errors.New("the registry is not running")

// inLoop runs f in the loop and waits for it.
func (r *Registry) inLoop(ctx context.Context, f func(*loop)) error {
	done := make(chan struct{})
	select {
	case r.calls <- func(l *loop) { f(l); close(done) }:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrStopped, context.Cause(ctx))
	}
	<-done // the loop always runs a function that it has received
	return nil
}
