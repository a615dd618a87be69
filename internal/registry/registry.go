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

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// Config is what an operator may choose. The zero value works: N identical processes need no configuration but
// NATS.
type Config struct {
	Prefix    mesh.Prefix      // default mesh.DefaultPrefix
	Name      string           // of this replica, for people; default the host's name
	Version   string           // of this program, for people; default "0.0.0"
	Heartbeat heartbeat.Config // interval, grace factor, forget-after
	Replicas  int              // of the bucket; default 3 in a cluster, 1 on a single server
	LeaseTTL  time.Duration    // whole seconds; default 10 s in a cluster, 3 s on a single server
	Logger    *slog.Logger     // default: discard

	MemoryLimit int64 // bytes, of which it derives how much it keeps; default GOMEMLIMIT or the control group's limit, else the machine's
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, mesh.Prefix(mesh.DefaultPrefix))
	c.Version = cmp.Or(c.Version, "0.0.0")
	if c.Name == "" {
		c.Name, _ = os.Hostname() // a name for people: an unknown one is no fault
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

// Registry is one replica. Make it with New, then Run it once.
type Registry struct {
	cfg       Config
	nc        *nats.Conn
	instance  string
	started   time.Time
	questions chan func(*loop) // asked of the loop from outside
}

// New returns a registry on nc that has not been started. nc stays the caller's. Its slow-consumer and
// permission errors are worth logging by the caller; a reconnect is the registry's own business.
func New(nc *nats.Conn, cfg Config) *Registry {
	return &Registry{cfg: cfg.withDefaults(), nc: nc, instance: nuid.Next(), questions: make(chan func(*loop))}
}

// Run is New and Registry.Run.
func Run(ctx context.Context, nc *nats.Conn, cfg Config) error { return New(nc, cfg).Run(ctx) }

// Run serves until ctx is done, and then hands its lease over, waits for everything it started, and returns nil.
// Without JetStream it logs that it waits, and keeps its state in memory. An error means that the connection
// cannot be used at all.
func (r *Registry) Run(ctx context.Context) error {
	l, err := newLoop(r)
	if err != nil {
		return err
	}
	status := r.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	defer r.nc.RemoveStatusListener(status)
	r.started = time.Now()

	// The service comes first and goes last: the loop's subscription has the service's subject in it, too, and who asks
	// while there is only that one is not told that nobody answers. The loop outlives the service by what it takes to
	// answer the last requests.
	looping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	svc, err := r.serve(looping)
	if err != nil {
		return err
	}
	defer func() { _ = svc.Stop() }() // a second time is nothing; it fails on a closed connection only
	if l.sub, err = r.hear(looping, l.in); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- l.run(looping, status) }() // owned by this function, which waits for it
	select {
	case <-ctx.Done():
		_ = l.sub.Unsubscribe() // fails on a closed connection only, as the other
		// The server has to know that before the service goes. It hands a request to one subscription after another, and of
		// two that go in between, it would find the loop's, and nobody for an answer. A busy machine may halt it there.
		if r.flush(context.WithoutCancel(ctx)) {
			<-time.After(serveOn)
		}
		_ = svc.Stop()
		r.settle(context.WithoutCancel(ctx))
		stop()
		return <-ended
	case err = <-ended:
		_ = l.sub.Unsubscribe()
		return err
	}
}

// hear subscribes to all subjects of registries, and passes the messages on to in until ctx is done. It uses a callback
// and not SubscribeSync or a channel: there only a number of messages limits what may wait, which is 65,536 whatever the
// limits are set to. A mesh of thirty thousand exceeds that when all announce, and a flood of large messages fills the
// memory long before.
func (r *Registry) hear(ctx context.Context, in chan<- *nats.Msg) (*nats.Subscription, error) {
	sub, err := r.nc.Subscribe(string(r.cfg.Prefix)+".registry.>", func(m *nats.Msg) {
		select {
		case in <- m:
		case <-ctx.Done():
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribing to the registry's subjects: %w", err)
	}
	if err := sub.SetPendingLimits(r.cfg.maxWaiting()); err != nil {
		_ = sub.Unsubscribe() // or it would stay with the connection, which is not ours
		return nil, fmt.Errorf("subscribing to the registry's subjects: %w", err)
	}
	return sub, nil
}

// serveOn is how long requests are answered still, once the loop hears no more.
const serveOn = 100 * time.Millisecond

// settle waits until the server knows that this replica takes no more requests, and those that had come are
// answered: micro's Stop waits for neither.
func (r *Registry) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if r.flush(ctx) {
		_ = r.ask(ctx, func(*loop) {}) // behind every question before
	}
}

// flush reports whether the server has answered, behind all that was sent, within a second.
func (r *Registry) flush(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return r.nc.FlushWithContext(ctx) == nil
}

// ErrStopped is the answer to a question asked of a registry that does not run.
var ErrStopped = errors.New("the registry is not running")

// ask runs f in the loop and waits for it.
func (r *Registry) ask(ctx context.Context, f func(*loop)) error {
	done := make(chan struct{})
	select {
	case r.questions <- func(l *loop) { f(l); close(done) }:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrStopped, context.Cause(ctx))
	}
	<-done // the loop runs what it has taken
	return nil
}
