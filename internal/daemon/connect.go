package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// ConnectOptions say how a program uses its connection.
type ConnectOptions struct {
	Name   string       // shown by the server, e.g. bridge/host1
	Logger *slog.Logger // losses, returns and errors of the connection; nil discards them

	// Wait is for daemons: a server that is not there yet, or does not let us in yet, is waited for, and a line
	// in the log says so. Without it the first failure is the error.
	Wait bool

	// NoBuffer refuses to publish while disconnected. Callers want it: a request that is sent when the
	// connection returns runs although its caller has given up. Those who answer do not.
	NoBuffer bool

	LameDuck *mesh.LameDuck // is told when the server is about to go; nil: nobody is
	OnDenied func(error)    // a permission violation; NATS reports it apart from the call that met it
	Extra    []nats.Option  // applied last
}

// connectTimeout is how long one server may take to let us in. An auth callout is part of that.
const connectTimeout = 5 * time.Second

// ConnectError is a NATS that cannot be reached.
type ConnectError struct {
	Addr   string // what was tried, without passwords
	Source string // where the address is from
	Err    error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("no NATS at %s (from %s): %v", e.Addr, e.Source, e.Err)
}

// Unwrap is what nats.go said.
func (e *ConnectError) Unwrap() error { return e.Err }

// Connect connects, and reconnects for ever after. It returns when the connection stands; the error is a
// *ConnectError, or ctx's.
func (t Target) Connect(ctx context.Context, o ConnectOptions) (*nats.Conn, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	up := make(chan struct{}, 1)
	opts := t.base
	all := t.options(o, up)
	if at, ok := ctx.Deadline(); ok {
		all = append(all, nats.Timeout(min(connectTimeout, time.Until(at))))
	}
	all = append(all, o.Extra...)
	for _, opt := range append(all, mesh.LowLatency()) { // a context may want a dialer of its own, a proxy
		if err := opt(&opts); err != nil {
			return nil, &ConnectError{t.Addr(), t.Source, err}
		}
	}
	nc, err := opts.Connect()
	if err != nil {
		return nil, &ConnectError{t.Addr(), t.Source, err}
	}
	if nc.IsConnected() {
		return nc, nil
	}
	o.Logger.Warn("waiting for NATS", "server", t.Addr(), "from", t.Source)
	select {
	case <-up:
		return nc, nil
	case <-ctx.Done():
		nc.Close()
		return nil, ctx.Err()
	}
}

func (t Target) options(o ConnectOptions, up chan<- struct{}) []nats.Option {
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(connectTimeout),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.RetryOnFailedConnect(o.Wait),
		nats.PermissionErrOnSubscribe(true),
		nats.ConnectHandler(func(*nats.Conn) {
			select {
			case up <- struct{}{}:
			default:
			}
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: closed by ourselves
				o.Logger.Warn("lost NATS, reconnecting", "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			o.Logger.Info("NATS is back", "server", nc.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { o.asyncError(sub, err) }),
	}
	if o.Wait {
		w := &waiting{logger: o.Logger, server: t.Addr()}
		// Credentials may be refused for a while only: an auth callout that is down, a key being rolled.
		opts = append(opts, nats.IgnoreAuthErrorAbort(), nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { w.failed(err, time.Now()) }))
	}
	if o.LameDuck != nil {
		opts = append(opts, o.LameDuck.Option())
	}
	if o.NoBuffer {
		opts = append(opts, nats.ReconnectBufSize(-1))
	}
	return opts
}

// asyncError logs what NATS reports outside any call.
func (o ConnectOptions) asyncError(sub *nats.Subscription, err error) {
	args := []any{"error", err}
	if sub != nil {
		args = append(args, "subject", sub.Subject)
	}
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		if o.OnDenied != nil {
			o.OnDenied(err)
		}
		o.Logger.Error("NATS denied an operation; check the user's permissions", args...)
	case errors.Is(err, nats.ErrSlowConsumer):
		o.Logger.Warn("messages were dropped, they came faster than they were read", args...)
	default:
		o.Logger.Error("NATS", args...)
	}
}

// The bounds of the pause between two rounds of attempts.
const (
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 10 * time.Second
)

// reconnectDelay doubles its bound with every round, with full jitter, so that a fleet does not return in
// step after a server's restart.
func reconnectDelay(attempts int) time.Duration {
	bound := min(reconnectMax, reconnectMin<<min(max(attempts, 1), 10))
	return reconnectMin + rand.N(bound-reconnectMin+1)
}
