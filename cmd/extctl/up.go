package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/localmesh"
	"github.com/extmesh/extmesh/internal/memlimit"
	"github.com/extmesh/extmesh/internal/natsd"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
)

const (
	defaultListen = "127.0.0.1:4222"

	// settleTimeout is how long up waits for extensions to start or fail before it prints the summary, counted from
	// the bridge's first report. settleRest is how long it waits for the rest as soon as one tool can be called.
	// Changes after the summary are printed as they occur.
	settleTimeout = 15 * time.Second
	settleRest    = 2 * time.Second
)

// upOptions are the flags of up.
type upOptions struct {
	dirs         []string
	listen       string
	data         string
	config       string
	noConfig     bool // the working directory is not the user's choice: its extensions.yaml is not read
	name         string
	log          daemon.LogFlags
	mcp          string // the address of the MCP server; "" is none
	tokens       string // the file of its clients' tokens; "" is none
	join         bool   // run a bridge on a mesh that exists
	joinsUp      bool   // which is another extctl up
	watch        bool   // restart an extension when its files change
	listenChosen bool   // --listen was given: do not fall back to another port
}

func upCmd(a *app) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up [DIR…]",
		Short: "Run a mesh on this machine: NATS, a registry and the extensions under DIR",
		Long: `Run NATS, a registry and a bridge in this process, for the extensions under each DIR (default ./extensions).

NATS listens on 127.0.0.1 only, requires a password that is new with each start, and stores its data in the user's data
directory. While it runs, extctl in any other terminal connects to it by default, and finds the password; extctl url
prints it for other programs. Ctrl-C stops everything.

Manifests that change, appear or disappear are applied within about two seconds, unless an extensions.yaml says otherwise.
With --watch, a change of another file restarts its extension.

With --join it starts no NATS server and no registry: the extensions join a mesh that is running already, by default that of
another extctl up, otherwise the one that --server or --context names.`,
		Example: "  extctl up examples/extensions\n  extctl up --watch extensions\n  extctl up --join --watch dice",
		RunE: func(cmd *cobra.Command, args []string) error {
			daemon.SurviveClosedOutput()
			o.dirs, o.listenChosen = args, cmd.Flags().Changed("listen")
			if o.join {
				return runJoin(cmd.Context(), a, o)
			}
			return runUp(cmd.Context(), a, o)
		},
	}
	cmd.Flags().BoolVar(&o.join, "join", false, "run only the extensions, on a mesh that exists: a running extctl up, or that of --server or --context")
	cmd.Flags().BoolVar(&o.watch, "watch", false, "restart an extension when a file in its directory changes")
	cmd.Flags().StringVar(&o.listen, "listen", defaultListen, "`ADDR` where NATS listens, on this machine: a port or 127.0.0.1:PORT; if the default port is in use, a free one is chosen")
	cmd.Flags().StringVar(&o.data, "data", "", "`DIR` for NATS's data (default: extmesh in the user's data directory)")
	cmd.Flags().StringVar(&o.config, "config", "", "extensions.yaml `FILE`; DIRs on the command line replace its search_paths")
	cmd.Flags().StringVar(&o.name, "name", "", "the bridge's `NAME` on the mesh (default the host's first label; with --join, followed by the name of the first DIR)")
	cmd.Flags().StringVar(&o.mcp, "mcp", "", "also serve MCP clients over HTTP on `ADDR` of this machine, such as 127.0.0.1:7331, or unix:PATH, which only your user can open")
	cmd.Flags().StringVar(&o.tokens, "mcp-tokens", "", "accept only MCP clients with a bearer token of `FILE`, so that other users of this machine cannot use the tools")
	cmd.Flags().StringVar(&o.log.Level, "log-level", "warn", "`LEVEL` of the log: debug, info, warn or error")
	cmd.Flags().StringVar(&o.log.Format, "log-format", "", "`FORMAT` of the log: text or json (default: lines for people on a terminal, otherwise text, and json with --json)")
	return cmd
}

// runUp runs until ctx ends; NATS stops last.
func runUp(ctx context.Context, a *app, o upOptions) error {
	m, err := planMesh(a, o)
	if err != nil {
		return err
	}
	defer m.mcp.close()
	daemon.HeapFloor(heapFloor)
	memlimit.Obey()
	var stopWatchdog func()
	m.bridge.Watchdog, stopWatchdog = bridge.StartWatchdog(m.logger) // starts while NATS starts
	defer stopWatchdog()
	srv, err := startNATS(a, o, m.logger)
	if err != nil {
		return err
	}
	m.url, m.data = srv.ClientURL(), daemon.StoreDir(o.data)
	switch {
	case o.data != "":
		dir, err := filepath.Abs(o.data)
		if err != nil {
			dir = o.data
		}
		m.urlFlag = " --data " + terminal.ShellWord(dir)
	case a.getenv("NATS_URL") != "":
		m.urlFlag = " --server " + m.url
	}
	target, err := daemon.InProcess(srv.InProcess())
	if err == nil {
		target.Secrets.Files = append(target.Secrets.Files, storelock.NotePath(m.data))
		err = m.run(ctx, target)
	}
	srv.Shutdown()
	if ctx.Err() != nil {
		a.note("stopped")
	}
	return err
}

// planMesh checks the flags and the settings, and opens the MCP server's listener, before anything starts.
func planMesh(a *app, o upOptions) (*localMesh, error) {
	prefix, err := wire.ParsePrefix(a.nats.Prefix)
	if err != nil {
		return nil, daemon.UsageError{Err: err}
	}
	forPeople := o.log.Format == "" && !a.json && daemon.IsTerminal(a.stderr)
	if o.log.Format == "" { // the same format as the other output, also if stderr is a pipe
		o.log.Format = map[bool]string{false: "text", true: "json"}[a.json]
	}
	logger, err := o.log.New(a.stderr)
	if err != nil {
		return nil, err
	}
	if forPeople {
		logger = slog.New(terminal.NewLog(a.stderr, logger.Handler()))
	}
	if up, running := storelock.Running(daemon.StoreDir(o.data)); running && !o.join { // it has the addresses, too
		return nil, alreadyRunning(&storelock.LockedError{StoreDir: daemon.StoreDir(o.data), Holder: up}, o)
	}
	if o.join {
		target, err := a.nats.Resolve() // if it fails, run reports that
		o.joinsUp = err == nil && (target.IsUp() || slices.Contains(target.Users(), storelock.User))
	}
	m := &localMesh{app: a, logger: logger, joins: o.join, watch: o.watch}
	m.settings = func() (config.Config, error) { return upSettings(o, slog.New(slog.DiscardHandler)) }
	if prefix != wire.DefaultPrefix {
		m.flags += " --prefix " + string(prefix)
	}
	if m.bridge, err = planBridge(o, logger); err != nil {
		return nil, err
	}
	m.bridge.Prefix = prefix
	m.mcp, err = newUpMCP(a, o.mcp, o.tokens, logger)
	return m, err
}

// startNATS starts the server on the given address, or on a free port if the default is in use and --listen was not
// given.
func startNATS(a *app, o upOptions, logger *slog.Logger) (*natsd.Server, error) {
	host, port, err := splitListen(o.listen)
	if err != nil {
		return nil, err
	}
	cfg := natsd.Config{Host: host, Port: port, StoreDir: daemon.StoreDir(o.data), RequirePassword: true, Logger: logger}
	srv, err := natsd.Start(cfg)
	if taken, ok := errors.AsType[*natsd.PortError](err); ok && !o.listenChosen {
		a.note("%s is in use by another program; NATS listens on a free port instead", taken.Addr)
		cfg.Port = -1
		srv, err = natsd.Start(cfg)
	}
	if locked, ok := errors.AsType[*storelock.LockedError](err); ok {
		return nil, alreadyRunning(locked, o)
	}
	if err != nil && as[*fs.PathError](err) {
		return nil, &failure{code: exitOther, err: err, hint: "pass a directory that you can write to with --data"}
	}
	return srv, err
}

// alreadyRunning is the error of an up if another one uses its data directory.
func alreadyRunning(locked *storelock.LockedError, o upOptions) error {
	f := &failure{code: exitOther, err: locked, hint: "a mesh is already running: extctl list"}
	switch {
	case !locked.Holder.IsHere():
		f.hint = "the directory is shared between machines: pass one of this machine with --data"
		return f
	case locked.Holder.URL == "":
		return f
	}
	f.err = &reworded{fmt.Sprintf("extctl up is already running here (pid %d, %s)", locked.Holder.PID, locked.Holder.URL), locked}
	join := "extctl up --join"
	if o.data != "" { // extctl does not find that mesh by itself
		join = "NATS_URL=$(extctl url --data " + terminal.ShellWord(o.data) + ") " + join
	}
	for _, dir := range o.dirs {
		join += " " + terminal.ShellWord(dir)
	}
	f.hint = "to add extensions that it does not run yet: " + join + "; to start another mesh, pass another directory with --data"
	return f
}

// splitListen parses a port or host:port. Port 0 means any free port.
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
		return "", 0, fail(exitUsage, "--listen %q: the NATS server of extctl up listens on this machine only: want a port, or 127.0.0.1:PORT", s).
			with("to accept other machines, run your own NATS server: docs/running-a-fleet.md", nil)
	}
	return host, port, nil
}

// localMesh is the mesh of one extctl up, or the part of a mesh that it joins.
type localMesh struct {
	*app
	joins    bool // NATS and the registry run elsewhere
	watch    bool // restart an extension when its files change
	started  time.Time
	url      string
	data     string
	urlFlag  string // the flags with which extctl url prints this mesh's URL; may be empty
	flags    string // that extctl in another terminal needs to connect to this mesh
	bridge   bridge.Config
	settings func() (config.Config, error) // of the bridge, as they are now
	mcp      *upMCP                        // may be nil
	logger   *slog.Logger
}

// run runs the mesh on target until ctx ends.
func (m *localMesh) run(ctx context.Context, target daemon.Target) error {
	m.started, m.bridge.Mesh = time.Now().Truncate(time.Millisecond), gate.Credentials(target.Secrets)
	parts := []localmesh.Part{m.report, func(running context.Context, _ *nats.Conn) error {
		<-running.Done()
		if ctx.Err() != nil {
			what := "the extensions, then the registry and NATS"
			if m.joins {
				what = "the extensions"
			}
			m.note("stopping %s; press Ctrl-C again to exit immediately", what)
		}
		return nil
	}}
	if m.watch {
		parts = append(parts, m.watchSources(ctx))
	}
	if m.mcp != nil {
		parts = append(parts, func(ctx context.Context, _ *nats.Conn) error { return m.mcp.run(ctx, target) })
	}
	return localmesh.Run(ctx, target, localmesh.Config{Bridge: m.bridge, Joins: m.joins, Logger: m.logger}, parts...)
}

// note prints information that is not a result on stderr, except with --json, where a program reads the output.
func (a *app) note(format string, args ...any) {
	if !a.json {
		fmt.Fprintf(a.stderr, format+"\n", args...)
	}
}

// runJoin runs a bridge on a mesh that exists, until ctx ends.
func runJoin(ctx context.Context, a *app, o upOptions) error {
	if o.listenChosen || o.data != "" {
		return fail(exitUsage, "--join excludes --listen and --data: the mesh has its NATS server already").
			with("--server and --context choose the mesh", nil)
	}
	for _, dir := range o.dirs {
		if strings.Contains(dir, "://") {
			return fail(exitUsage, "%s is not a directory", dir).
				with("the address of the mesh is a flag: extctl up --join --server "+terminal.ShellWord(dir)+" DIR", nil)
		}
	}
	memlimit.Obey()
	m, err := planMesh(a, o)
	if err != nil {
		return err
	}
	defer m.mcp.close()
	target, err := a.nats.Resolve()
	if err != nil {
		return err
	}
	m.url = target.Addr()
	switch {
	case a.nats.Server != "":
		m.flags += " --server " + terminal.ShellWord(m.url)
	case a.nats.Context != "":
		m.flags += " --context " + terminal.ShellWord(a.nats.Context)
	}
	var stopWatchdog func()
	m.bridge.Watchdog, stopWatchdog = bridge.StartWatchdog(m.logger)
	defer stopWatchdog()
	err = explainConnect(target, m.run(ctx, target))
	if ctx.Err() != nil {
		a.note("stopped")
	}
	return err
}
