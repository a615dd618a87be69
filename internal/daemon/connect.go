package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
)

// ConnectOptions configure a program's connection.
type ConnectOptions struct {
	Name   string       // shown by the server, e.g. bridge/host1
	Logger *slog.Logger // for disconnects, reconnects and errors of the connection; nil discards them

	// Wait is for daemons: Connect waits for a server that is not reachable or refuses the connection, and logs why.
	// Without it the first failure is returned.
	Wait bool

	// NoBuffer refuses to publish while disconnected. Callers set it: otherwise a request sent after the reconnect
	// would run although its caller has given up. Services do not set it.
	NoBuffer bool

	OnDenied func(error)   // called on a permission violation, which NATS reports separately from the operation
	Extra    []nats.Option // applied last
}

// ConnectError is returned if NATS cannot be reached.
type ConnectError struct {
	Addr   string // the servers tried, without passwords
	Source string // the origin of the address
	Err    error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("cannot connect to NATS at %s (from %s): %v", e.Addr, e.Source, e.Err)
}

// Unwrap returns nats.go's error.
func (e *ConnectError) Unwrap() error { return e.Err }

// Connect connects and, after that, reconnects without a limit. It returns when the connection is established; the
// error is a *ConnectError, or ctx's.
func (t Target) Connect(ctx context.Context, o ConnectOptions) (*nats.Conn, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	up := make(chan struct{}, 1)
	opts := t.base
	if t.upURL != "" {
		opts.UserInfo = currentUser(t.Servers[0], opts.Password)
		opts.User, opts.Password = "", ""
		opts.IgnoreAuthErrorAbort = true // it may be refused before the note has the new password
	}
	if t.context != "" && opts.User != "" && opts.Password != "" { // the file may be changed while this program runs
		opts.UserInfo = contextUser(t.context, opts.User, opts.Password)
		opts.User, opts.Password = "", ""
	}
	if token := opts.Token; t.context != "" && token != "" && !strings.Contains(strings.Join(t.Servers, " "), "@") { // a token in the address counts
		opts.Token, opts.TokenHandler = "", func() string {
			if now, err := contextTarget(t.context, t.context); err == nil && now.base.Token != "" {
				return now.base.Token
			}
			return token
		}
	}
	all := t.options(o, up)
	if at, ok := ctx.Deadline(); ok {
		all = append(all, func(o *nats.Options) error {
			o.Timeout = max(1, min(o.Timeout, time.Until(at))) // nats.go takes a negative one for a mistake
			return nil
		})
	}
	all = append(append(all, o.Extra...), natsconn.Option()) // late, because a nats context may have set a dialer, such as a proxy
	if t.upURL != "" {
		all = append(all, natsconn.OnlyWhile(t.isStillUp))
	}
	for _, opt := range all {
		if err := opt(&opts); err != nil {
			return nil, &ConnectError{t.Addr(), t.Source, err}
		}
	}
	nc, err := connect(ctx, opts)
	if errors.Is(err, context.Canceled) {
		return nil, err
	}
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

// isStillUp returns an error if no `extctl up` listens at the address of the one that was found: another server there belongs to
// another mesh, or to another user, and must not get this program's calls.
func (t Target) isStillUp() error {
	if up, ok := storelock.Running(StoreDir("")); !ok || !sameAddress(t.Servers[0], up.URL) {
		return errors.New("the extctl up that was found here has ended")
	}
	return nil
}

// connect connects until ctx ends: nats.go tries all addresses, and each can take as long as the lookup of its name.
func connect(ctx context.Context, opts nats.Options) (*nats.Conn, error) {
	type result struct {
		nc  *nats.Conn
		err error
	}
	done := make(chan result, 1)
	go func() { // ends with the last try
		nc, err := opts.Connect()
		done <- result{nc, err}
	}()
	select {
	case r := <-done:
		return r.nc, r.err
	case <-ctx.Done():
		go func() { // ends with the last try
			if r := <-done; r.err == nil {
				r.nc.Close()
			}
		}()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, nats.ErrTimeout
		}
		return nil, ctx.Err()
	}
}

func (t Target) options(o ConnectOptions, up chan<- struct{}) []nats.Option {
	opts := append(natsconn.Defaults(),
		nats.Name(o.Name),
		nats.RetryOnFailedConnect(o.Wait),
		nats.PermissionErrOnSubscribe(true),
		// Of each request that waits for its answer, and of each page of the catalog, which has 1,000 messages. The default
		// of 65,536 costs half a megabyte for each of the 10,000 handshakes of a large mesh.
		nats.SyncQueueLen(4096),
		nats.ConnectHandler(func(*nats.Conn) {
			select {
			case up <- struct{}{}:
			default:
			}
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: this program closed it
				o.Logger.Warn("NATS connection lost, reconnecting", "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			o.Logger.Info("reconnected to NATS", "server", natsconn.Server(nc))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { o.asyncError(sub, err) }),
	)
	if o.Wait {
		w := &waiting{logger: o.Logger, server: t.Addr()}
		// Credentials may be refused temporarily: an auth callout is down, or a key is being rotated.
		opts = append(opts, nats.IgnoreAuthErrorAbort(), nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { w.failed(err, time.Now()) }))
	}
	if o.NoBuffer {
		opts = append(opts, nats.ReconnectBufSize(-1))
	}
	return opts
}

// asyncError logs errors that NATS reports outside any call.
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
		o.Logger.Warn("messages dropped: they arrived faster than they were processed", args...)
	default:
		o.Logger.Error("NATS error", args...)
	}
}
