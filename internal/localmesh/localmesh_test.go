package localmesh

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/natsd"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestRegistryConfig: the heartbeat settings of the host apply to the registry.
func TestRegistryConfig(t *testing.T) {
	own := config.Default()
	own.HeartbeatInterval, own.HeartbeatGraceFactor = 2*time.Second, 7.5
	for want, settings := range map[liveness.Config]config.Config{
		{Interval: 2 * time.Second, Grace: 7.5}:                              own,
		{Interval: heartbeat.DefaultInterval, Grace: heartbeat.DefaultGrace}: config.Default(),
	} {
		m := &programs{Config: Config{Bridge: bridge.Config{Prefix: "p", Settings: settings}}}
		if got := m.registryConfig(); got.Heartbeat != want || got.Prefix != "p" {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestPartFails: the error of a part ends the mesh and is returned.
func TestPartFails(t *testing.T) {
	srv, err := natsd.Start(natsd.Config{Port: -1, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	target, err := daemon.InProcess(srv.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	settings := config.Default()
	settings.SearchPaths = []string{t.TempDir()}
	c := Config{Logger: slog.New(slog.DiscardHandler), Bridge: bridge.Config{Name: "b1", Prefix: wire.DefaultPrefix, Version: "1.0.0", Settings: settings, StateDir: t.TempDir()}}
	broken := errors.New("broken")
	fails := func(context.Context, *nats.Conn) error { return broken }
	waits := func(ctx context.Context, _ *nats.Conn) error { <-ctx.Done(); return nil }
	if err := Run(t.Context(), target, c, waits, fails); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}
