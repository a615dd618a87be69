package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/natsd"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

const (
	defaultListen = "127.0.0.1:4222"

	// settleTimeout is how long up waits for extensions to be up or not before it says how things stand, from when
	// their bridge has said which there are, and settleRest how long it waits for the others when there is a tool to
	// call. What takes longer is told when it comes.
	settleTimeout = 15 * time.Second
	settleRest    = 2 * time.Second
)

// upOptions are the flags of up.
type upOptions struct {
	dirs         []string
	listen       string
	data         string
	config       string
	name         string
	log          daemon.LogFlags
	listenChosen bool // --listen was given: another port would not be what was asked for
}

func (a *app) upCmd() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up [DIR…]",
		Short: "Run a mesh of your own: NATS, registry and the extensions under DIR, until interrupted",
		Long: `Run NATS, a registry and a bridge in this process, over the extensions under each DIR (default ./extensions).

NATS listens on 127.0.0.1 only and keeps its data under the user's data directory. While it runs, extctl in any
other terminal finds it by itself. Ctrl-C stops everything.`,
		Example: "  extctl up examples/extensions",
		RunE: func(cmd *cobra.Command, args []string) error {
			o.dirs, o.listenChosen = args, cmd.Flags().Changed("listen")
			return a.up(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.listen, "listen", defaultListen, "`ADDR` where NATS listens, on this machine: a port or 127.0.0.1:PORT; if the default is taken, a free port is")
	cmd.Flags().StringVar(&o.data, "data", "", "`DIR` for NATS's data (default: extmesh in the user's data directory)")
	cmd.Flags().StringVar(&o.config, "config", "", "extensions.yaml `FILE`; DIRs on the command line replace its search_paths")
	cmd.Flags().StringVar(&o.name, "name", "", "the bridge's `NAME` on the mesh (default the host's first label)")
	cmd.Flags().StringVar(&o.log.Level, "log-level", "warn", "`LEVEL` of what is logged: debug, info, warn or error")
	cmd.Flags().StringVar(&o.log.Format, "log-format", "", "`FORMAT` of the log: text or json (default: text, and json with --json)")
	return cmd
}

// up runs until ctx ends; then the bridge stops its extensions, the registry writes down that they are gone, and
// NATS goes last.
func (a *app) up(ctx context.Context, o upOptions) error {
	prefix, err := mesh.ParsePrefix(a.nats.Prefix)
	if err != nil {
		return daemon.UsageError{Err: err}
	}
	if o.log.Format == "" { // also in a pipe the log goes with what else is said there
		o.log.Format = map[bool]string{false: "text", true: "json"}[a.json]
	}
	logger, err := o.log.New(a.stderr)
	if err != nil {
		return err
	}
	host, err := a.planHost(o, logger)
	if err != nil {
		return err
	}
	awaitWatchdog, stopWatchdog := bridge.StartWatchdog(logger) // while NATS starts
	defer stopWatchdog()
	srv, err := a.startNATS(o, logger)
	if err != nil {
		return err
	}
	m := &ownMesh{app: a, watchdog: awaitWatchdog, started: time.Now().Truncate(time.Millisecond), url: srv.ClientURL(), data: daemon.StoreDir(o.data), prefix: prefix, host: host, logger: logger}
	if o.data != "" || a.getenv("NATS_URL") != "" {
		m.flags += " --server " + m.url
	}
	if prefix != mesh.DefaultPrefix {
		m.flags += " --prefix " + string(prefix)
	}
	err = m.connectAndRun(ctx, srv)
	srv.Shutdown()
	if ctx.Err() != nil {
		a.note("stopped")
	}
	return err
}

// startNATS starts the server where it was asked to listen, or on a free port where nobody insists on one.
func (a *app) startNATS(o upOptions, logger *slog.Logger) (*natsd.Server, error) {
	host, port, err := splitListen(o.listen)
	if err != nil {
		return nil, err
	}
	cfg := natsd.Config{Host: host, Port: port, StoreDir: daemon.StoreDir(o.data), Logger: logger}
	srv, err := natsd.Start(cfg)
	if taken, ok := errors.AsType[*natsd.PortError](err); ok && !o.listenChosen {
		a.note("%s is taken by another program; NATS takes a free port instead", taken.Addr)
		cfg.Port = -1
		srv, err = natsd.Start(cfg)
	}
	if locked, ok := errors.AsType[*storelock.LockedError](err); ok {
		f := &failure{code: exitOther, err: err, hint: "it is up already: extctl list"}
		if locked.Holder.URL != "" {
			f.hint = "it is up already on " + locked.Holder.URL + ": extctl list; or give this one its own --data"
		}
		return nil, f
	}
	if err != nil && as[*fs.PathError](err) {
		return nil, &failure{code: exitOther, err: err, hint: "give it a directory that it may write to, with --data"}
	}
	return srv, err
}

// splitListen reads a port or host:port. Port 0 is a free one.
func splitListen(s string) (host string, port int, err error) {
	host, p := "127.0.0.1", s
	if h, rest, err := net.SplitHostPort(s); err == nil {
		p = rest
		if h != "" {
			host = h
		}
	}
	port, err = strconv.Atoi(p)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, usage("--listen %q: want a port or host:port", s)
	}
	if port == 0 {
		port = -1
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		f := fail(exitUsage, "--listen %q: this NATS knows no users, so it listens on this machine only: want a port, or 127.0.0.1:PORT", s)
		f.hint = "for others to reach it, run a NATS server of your own: docs/running-a-fleet.md"
		return "", 0, f
	}
	return host, port, nil
}

// ownMesh is what runs in one extctl up.
type ownMesh struct {
	*app
	started time.Time
	url     string
	data    string
	flags   string // without which extctl in another terminal would not find this mesh
	prefix  mesh.Prefix
	host    hostPlan
	logger  *slog.Logger

	watchdog func()

	registryNC, bridgeNC, nc *nats.Conn
}

// connectAndRun runs the mesh on srv and returns when nothing of it is left, its connections included.
func (m *ownMesh) connectAndRun(ctx context.Context, srv *natsd.Server) error {
	target, err := daemon.InProcess(srv.InProcess())
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		nc   **nats.Conn
	}{{"registry", &m.registryNC}, {"bridge/" + m.host.name, &m.bridgeNC}, {"extctl up", &m.nc}} {
		if *c.nc, err = target.Connect(ctx, daemon.ConnectOptions{Name: c.name, Logger: m.logger}); err != nil {
			return err
		}
		defer (*c.nc).Close()
	}
	return m.run(ctx)
}

// run returns when everything it started has stopped.
func (m *ownMesh) run(ctx context.Context) error {
	bridgeCtx, stopBridge := context.WithCancelCause(ctx)
	registryCtx, stopRegistry := context.WithCancelCause(context.WithoutCancel(ctx))
	var extensions, others sync.WaitGroup
	var bridgeErr, registryErr error
	others.Go(func() { // ends with registryCtx; if earlier, everything ends
		registryErr = registry.Run(registryCtx, m.registryNC, m.registryConfig())
		stopBridge(registryErr)
	})
	extensions.Go(func() { // ends with bridgeCtx; if earlier, everything ends
		bridgeErr = m.runBridge(bridgeCtx)
		stopBridge(bridgeErr)
	})
	others.Go(func() { // ends with bridgeCtx
		if err := m.report(bridgeCtx); err != nil && bridgeCtx.Err() == nil {
			m.logger.Warn("cannot say how the extensions are", "error", err)
		}
	})
	<-bridgeCtx.Done()
	if ctx.Err() != nil {
		m.note("stopping the extensions, then the registry and NATS; Ctrl-C again ends it at once")
	}
	extensions.Wait()
	m.awaitGoodbyes(context.WithoutCancel(ctx))
	stopRegistry(nil)
	others.Wait()
	if ctx.Err() != nil && errors.Is(bridgeErr, ctx.Err()) {
		bridgeErr = nil
	}
	return errors.Join(bridgeErr, registryErr)
}

// note says on stderr what is none of the results; with --json nobody reads along.
func (a *app) note(format string, args ...any) {
	if !a.json {
		fmt.Fprintf(a.stderr, format+"\n", args...)
	}
}

// goodbyeTimeout is how long the registry may take to write down that the extensions are gone. Without it the
// next extctl up would begin with a catalog that believes them alive.
const goodbyeTimeout = 3 * time.Second

func (m *ownMesh) awaitGoodbyes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, goodbyeTimeout)
	defer cancel()
	s := &session{app: m.app, nc: m.nc, prefix: m.prefix}
	// Out of time is no fault: the registry finds out by their silence.
	_ = s.follow(ctx, func(ctx context.Context, c *mesh.Catalog) error {
		return c.WaitFor(ctx, func(c *mesh.Catalog) bool {
			for _, e := range c.All() {
				for _, i := range e.State.Instances {
					if i.Bridge == m.host.name && i.State != heartbeat.Shutdown && i.State != heartbeat.Lost {
						return false
					}
				}
			}
			return true
		})
	})
}
