package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/wire"
)

// Health serves /healthz (the process runs), /readyz (the program can do its work; otherwise 503 and the reason) and
// /metrics (Prometheus text). A Program is never ready while NATS is disconnected.
type Health struct {
	Addr   string // host:port; empty: Run serves nothing
	Logger *slog.Logger

	// WithoutNATS is for a program that does useful work while NATS is disconnected: only its own check decides.
	WithoutNATS bool

	connected atomic.Pointer[nats.Conn]
	ready     atomic.Pointer[func() error]
	deniedSub atomic.Pointer[deniedSub]
	metrics   atomic.Pointer[func(io.Writer)]
}

// Connected sets the connection that /metrics describes; a Program does it itself.
func (h *Health) Connected(nc *nats.Conn) { h.connected.Store(nc) }

// Ready sets the program's own readiness check: f returns nil, or why the program cannot do its work. f must be safe
// for concurrent use.
func (h *Health) Ready(f func() error) { h.ready.Store(&f) }

// Metrics sets the function that writes the program's own metrics as complete families in Prometheus's text format. f
// must be safe for concurrent use.
func (h *Health) Metrics(f func(io.Writer)) { h.metrics.Store(&f) }

// Run serves until ctx ends, and then returns nil. It returns an error if it cannot listen on Addr.
func (h *Health) Run(ctx context.Context) error {
	if h.Addr == "" {
		<-ctx.Done()
		return nil
	}
	l, err := net.Listen("tcp", h.Addr)
	if err != nil {
		return err
	}
	return h.serve(ctx, l)
}

func (h *Health) serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           h.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	if h.Logger != nil {
		h.Logger.Info("health endpoints", "addr", l.Addr().String())
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }() // ends with Close below, which waits for it
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	// A graceful shutdown is not needed for health checks and scrapes.
	err := srv.Close()
	if serveErr := <-done; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

func (h *Health) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := h.readiness(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
		io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		writeProcessMetrics(w, h.connected.Load())
		if f := h.metrics.Load(); f != nil {
			(*f)(w)
		}
	})
	return mux
}

// deniedSub is a subscription of the program that NATS has denied.
type deniedSub struct {
	subject    string
	reconnects uint64 // of the connection at that time; a reconnect subscribes again
}

// denied records err if it denies a subscription that the program needs for its work. Subscriptions of extensions are
// excluded, because each extension reports that in its own state, and so is the discovery of micro services.
func (h *Health) denied(prefix wire.Prefix, err error) {
	subject, ok := natsconn.DeniedSubscription(err)
	switch nc := h.connected.Load(); {
	case !ok, strings.HasPrefix(subject, "$SRV."), strings.HasPrefix(subject, prefix.CatalogEvents()+".state."):
	case subject != prefix.RegistryRPC() && (strings.HasSuffix(subject, ".rpc") || strings.HasSuffix(subject, ".cancel") || strings.Contains(subject, ".rpc.") || strings.HasSuffix(subject, ".ack.*")):
	case nc == nil: // too early for a subscription that the program needs; it is logged
	default:
		h.deniedSub.Store(&deniedSub{subject, nc.Stats().Reconnects})
	}
}

func (h *Health) readiness() error {
	nc := h.connected.Load()
	switch {
	case h.WithoutNATS:
	case nc == nil:
		return errors.New("waiting for NATS")
	case !nc.IsConnected():
		return fmt.Errorf("NATS: %s", nc.Status())
	}
	if d := h.deniedSub.Load(); d != nil && nc != nil && d.reconnects == nc.Stats().Reconnects {
		return fmt.Errorf("NATS denied the subscription to %s; correct the user's permissions, then restart this program", d.subject)
	}
	f := h.ready.Load()
	if f == nil {
		return errors.New("starting")
	}
	return (*f)()
}
