// Package localmesh runs a mesh in one process: a registry and a bridge on a NATS server, or only the bridge on a mesh that
// exists.
package localmesh

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// Config describes the mesh.
type Config struct {
	Bridge bridge.Config // complete; the registry has the same prefix, version and heartbeat settings
	Joins  bool          // the mesh exists: only the bridge runs
	Logger *slog.Logger
}

// Part runs alongside the bridge until ctx ends. An error ends the whole mesh. All parts share a connection.
type Part func(ctx context.Context, nc *nats.Conn) error

// Run runs until ctx ends or a program of the mesh fails. Then the bridge stops its extensions, the registry records that they
// are gone, and stops.
func Run(ctx context.Context, target daemon.Target, c Config, parts ...Part) error {
	m := &programs{Config: c}
	defer m.disconnect()
	if err := m.connect(ctx, target); err != nil {
		return err
	}
	if !c.Joins {
		if err := forgetEarlier(ctx, m.nc, c.Bridge.Prefix, c.Bridge.Name); err != nil && ctx.Err() == nil {
			c.Logger.Warn("extensions of an earlier run may still be listed", "error", err)
		}
	}
	return m.run(ctx, parts)
}

// programs are the programs of one mesh, each with its connection.
type programs struct {
	Config
	registryNC, bridgeNC, nc *nats.Conn
}

// connect opens the connections; disconnect closes those that are open.
func (m *programs) connect(ctx context.Context, target daemon.Target) (err error) {
	for _, c := range []struct {
		name string
		nc   **nats.Conn
	}{{"registry", &m.registryNC}, {"bridge/" + m.Bridge.Name, &m.bridgeNC}, {"extctl up", &m.nc}} {
		if m.Joins && c.nc == &m.registryNC {
			continue
		}
		// A server that restarts may refuse credentials for a moment, which must not end the programs.
		o := daemon.ConnectOptions{Name: c.name, Logger: m.Logger, Extra: []nats.Option{nats.IgnoreAuthErrorAbort()}}
		if *c.nc, err = target.Connect(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func (m *programs) disconnect() {
	for _, nc := range []*nats.Conn{m.nc, m.bridgeNC, m.registryNC} {
		if nc != nil {
			nc.Close()
		}
	}
}

// run returns when everything it started has stopped.
func (m *programs) run(ctx context.Context, parts []Part) error {
	bridgeCtx, stopBridge := context.WithCancelCause(ctx)
	registryCtx, stopRegistry := context.WithCancelCause(context.WithoutCancel(ctx))
	var extensions, others sync.WaitGroup
	var bridgeErr, registryErr error
	if !m.Joins {
		others.Go(func() { // ends with registryCtx; if earlier, everything ends
			registryErr = registry.Run(registryCtx, m.registryNC, m.registryConfig())
			stopBridge(registryErr)
		})
	}
	extensions.Go(func() { // ends with bridgeCtx; if earlier, everything ends
		bridgeErr = bridge.New(m.bridgeNC, m.Bridge).Run(bridgeCtx)
		stopBridge(bridgeErr)
	})
	failed := make([]error, len(parts))
	for n, part := range parts {
		others.Go(func() { // ends with bridgeCtx; if earlier with an error, everything ends
			if failed[n] = part(bridgeCtx, m.nc); failed[n] != nil {
				stopBridge(failed[n])
			}
		})
	}
	<-bridgeCtx.Done()
	extensions.Wait()
	if (bridgeErr == nil || ctx.Err() != nil && errors.Is(bridgeErr, ctx.Err())) && m.nc.IsConnected() { // otherwise it has registered nothing, or nothing can be read
		m.awaitDeregistered(context.WithoutCancel(ctx))
	}
	stopRegistry(nil)
	others.Wait()
	if ctx.Err() != nil && errors.Is(bridgeErr, ctx.Err()) {
		bridgeErr = nil
	}
	return errors.Join(append(failed, bridgeErr, registryErr)...)
}

// registryConfig is the configuration of the registry. It uses the heartbeat settings of this host, the only one.
func (m *programs) registryConfig() registry.Config {
	b := m.Bridge
	return registry.Config{
		Prefix: b.Prefix, Version: b.Version, Logger: m.Logger,
		Heartbeat: liveness.Config{Interval: b.Settings.HeartbeatInterval, Grace: b.Settings.HeartbeatGraceFactor},
	}
}

// deregisterTimeout is how long the registry may take to record that the extensions are gone. Otherwise the next run would
// start with a catalog that lists them as ready.
const deregisterTimeout = 3 * time.Second

func (m *programs) awaitDeregistered(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deregisterTimeout)
	c := mesh.NewCatalog(m.nc, mesh.CatalogOptions{Prefix: string(m.Bridge.Prefix)})
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() { // ends with ctx
		defer cancel()
		_ = c.Run(ctx)
	})
	// A timeout is not an error: the next registry marks the instances lost after the grace period.
	_ = c.WaitFor(ctx, func(c *mesh.Catalog) bool {
		for _, e := range c.All() {
			for _, i := range e.State.Instances {
				if i.Bridge == m.Bridge.Name && i.State != heartbeat.Shutdown && i.State != heartbeat.Lost {
					return false
				}
			}
		}
		return true
	})
}
