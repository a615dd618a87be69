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

	"github.com/extmesh/extmesh/pkg/mesh"
)

// Health serves /healthz (the process lives), /readyz (it does its work; else 503 and why) and /metrics
// (Prometheus text). A Program is unready while NATS is away in any case.
type Health struct {
	Addr   string // host:port; empty: Run serves nothing
	Logger *slog.Logger

	connected atomic.Pointer[nats.Conn]
	ready     atomic.Pointer[func() error]
	deaf      atomic.Pointer[deaf]
	metrics   atomic.Pointer[func(io.Writer)]
}

// Ready sets the program's own readiness: f returns nil, or why the program cannot do its work. f is called
// from many goroutines.
func (h *Health) Ready(f func() error) { h.ready.Store(&f) }

// Metrics sets what writes the program's own metrics, whole families in Prometheus's text format. f is called
// from many goroutines.
func (h *Health) Metrics(f func(io.Writer)) { h.metrics.Store(&f) }

// Run serves until ctx ends and returns nil then. The error is an address that cannot be listened on.
func (h *Health) Run(ctx context.Context) error {
	if h.Addr == "" {
		<-ctx.Done()
		return nil
	}
	l, err := net.Listen("tcp", h.Addr)
	if err != nil {
		return fmt.Errorf("--http: %w", err)
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
	go func() { done <- srv.Serve(l) }() // ends with Close below; awaited
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	// Nobody's work hangs on a scrape: no graceful shutdown.
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

// deaf is a subscription of the program's own that NATS has denied.
type deaf struct {
	subject    string
	reconnects uint64 // when it was; a reconnect asks for it anew
}

// denied takes note of err, if it is a subscription that was denied and without which the program cannot do its work.
// Those of extensions are not: each says so itself, in its state. Nor is the discovery of micro services.
func (h *Health) denied(prefix mesh.Prefix, err error) {
	subject, ok := mesh.DeniedSubscription(err)
	switch nc := h.connected.Load(); {
	case !ok, strings.HasPrefix(subject, "$SRV."), strings.HasPrefix(subject, prefix.CatalogEvents()+".state."):
	case subject != prefix.RegistryRPC() && (strings.HasSuffix(subject, ".rpc") || strings.HasSuffix(subject, ".cancel") || strings.Contains(subject, ".rpc.")):
	case nc == nil: // so early that it can be none of those; it is logged
	default:
		h.deaf.Store(&deaf{subject, nc.Stats().Reconnects})
	}
}

func (h *Health) readiness() error {
	nc := h.connected.Load()
	switch {
	case nc == nil:
		return errors.New("waiting for NATS")
	case !nc.IsConnected():
		return fmt.Errorf("NATS: %s", nc.Status())
	}
	if d := h.deaf.Load(); d != nil && d.reconnects == nc.Stats().Reconnects {
		return fmt.Errorf("NATS does not let it listen on %s; see its user's permissions", d.subject)
	}
	f := h.ready.Load()
	if f == nil {
		return errors.New("starting")
	}
	return (*f)()
}
