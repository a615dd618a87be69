package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/door"
	"github.com/extmesh/extmesh/internal/memlimit"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// mcpOptions are the flags of mcp.
type mcpOptions struct {
	door  door.Options
	names string
	tools string
	up    []string
	http  httpFlags
	log   daemon.LogFlags

	profiles, profile string
}

func mcpCmd(a *app) *cobra.Command {
	var o mcpOptions
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer all tools of the mesh as one MCP server",
		Long: `Offer the tools of all extensions on the mesh as one MCP server: on standard input and output, for one MCP client,
which starts this command and ends it by closing the input; or with --http for any number of clients.

If the mesh cannot be reached, the server starts all the same and keeps trying; it notifies the client when tools are
available. With --up DIR it starts a mesh with the extensions under DIR, unless an extctl up of this user is running. The
first lists wait until these extensions have started or failed, but at most --wait.

--timeout is the time limit of a call (default 5m).`,
		Example: `  extctl mcp
  extctl mcp --only 'github*' --read-only
  extctl mcp --up examples/extensions
  extctl mcp --http 127.0.0.1:7331`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.chooseView(cmd.Flags().Changed); err != nil {
				return daemon.UsageError{Err: err}
			}
			daemon.SurviveClosedOutput()
			return runMCP(cmd.Context(), a, o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.up, "up", nil, "start a mesh with the extensions under `DIR` if no extctl up is running; can be repeated")
	o.http.add(cmd)
	f.StringVar(&o.door.Agent, "agent-id", "", "the `ID` of the calling agent (default: the name of the MCP client)")
	f.DurationVar(&o.door.Wait, "wait", 2*time.Second, "how long after its start the server may wait for the mesh, and the extensions of --up, before it answers a list, as a `DURATION`")
	f.StringVar(&o.log.Level, "log-level", "warn", "`LEVEL` of the log on stderr: debug, info, warn or error")
	f.StringVar(&o.log.Format, "log-format", "text", "`FORMAT` of the log: text or json")
	o.addViewFlags(cmd)
	cmd.AddCommand(mcpInstallCmd(a), mcpUninstallCmd(a), mcpClientsCmd(a), mcpTokenCmd(a), mcpPreviewCmd(a))
	return cmd
}

// addViewFlags adds the flags that choose what clients are shown.
func (o *mcpOptions) addViewFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.door.View.Only, "only", nil, "offer only what matches `PATTERN`: an extension's id, <id>/<tool>, <id>/prompt:<name>, <id>/resource:<uri>, skill:<directory> or a tool's registered name, with * and ?; can be repeated")
	f.StringArrayVar(&o.door.View.Exclude, "exclude", nil, "do not offer what matches `PATTERN`; can be repeated")
	f.BoolVar(&o.door.View.ReadOnly, "read-only", false, "offer only tools whose annotations state that they only read")
	f.StringVar(&o.names, "names", "registered", "`MODE` of naming: registered (ext_<id>_<tool>), or own (the tool's own name, if only one tool has it)")
	f.IntVar(&o.door.View.NameLimit, "name-limit", wire.MaxToolName, "longest name of a tool, in `BYTES`, from 24 to 64")
	f.StringVar(&o.tools, "tools", "auto", "`MODE` of offering: all lists every tool, search offers tools to search and call them, auto searches above --search-over or 512 KiB of descriptors")
	f.IntVar(&o.door.View.SearchOver, "search-over", 128, "`NUMBER` of tools above which auto searches")
	f.StringVar(&o.profiles, "profiles", "", "`FILE` with profiles: named selections of tools (docs/mcp.md); --exclude, --read-only and --name-limit reduce all of them")
	f.StringVar(&o.profile, "profile", "", "offer the profile `NAME` instead of the one named default")
}

// heapFloor is for daemon.HeapFloor.
const heapFloor = 16 << 20

// runMCP serves until the input or ctx ends.
func runMCP(ctx context.Context, a *app, o mcpOptions) error {
	logger, err := o.log.New(a.stderr)
	if err != nil {
		return err
	}
	if a.timeout < 0 {
		return usage("--timeout %v: want a positive duration", a.timeout)
	}
	o.door.Logger, o.door.Version, o.door.CallTimeout = logger, daemon.Version(), a.timeout
	if o.door.Wait == 0 {
		o.door.Wait = -1
	}
	allStarted := o.holdLists(a)
	d, err := door.New(o.door)
	if err != nil {
		return daemon.UsageError{Err: err}
	}
	link, err := newMCPLink(a, d, logger, o.http.admin)
	if err != nil {
		return err
	}
	if link.allStarted, link.wait = allStarted, o.door.Wait; allStarted != nil {
		defer context.AfterFunc(ctx, allStarted)() // a list that waits would keep the server from stopping
	}
	flags := a.nats
	if link.upOnly = len(o.up) > 0; link.upOnly && !hasChosenMesh(a) {
		if flags.Creds != "" || flags.NKey != "" {
			return usage("--up starts a mesh that needs no --creds or --nkey")
		}
		flags.Server = nats.DefaultURL // the selected context is not used, so that it may be broken
	}
	if _, err := flags.Resolve(); err != nil {
		return err
	}
	if err := bridge.CheckDirs(o.up); err != nil {
		return daemon.UsageError{Err: err}
	}
	if o.http.admin != "" && o.http.addr == "" {
		return usage("--admin needs --http")
	}
	daemon.HeapFloor(heapFloor)
	memlimit.Obey()
	// The calls in flight complete after ctx has ended.
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	background.Go(func() { _ = d.Run(whole) }) // ends with whole
	background.Go(func() { link.run(whole) })  // ends with whole
	if len(o.up) > 0 {
		background.Go(func() { keepUp(whole, a, o.up, logger) }) // ends with whole
	}
	return link.serveWithHealth(ctx, &o.http)
}

// serveWithHealth serves clients, and the health endpoints, until ctx or the input ends. While the last calls complete, the
// endpoints remain, and report that the server is not ready.
func (l *mcpLink) serveWithHealth(ctx context.Context, f *httpFlags) error {
	serving, stop := context.WithCancelCause(ctx)
	l.health.Ready(func() error {
		if serving.Err() != nil {
			return errors.New("stopping")
		}
		return l.door.Ready()
	})
	whole, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() { // ends with whole, and is awaited below
		defer close(ended)
		if err := l.health.Run(whole); err != nil {
			stop(fmt.Errorf("--admin: %w", err))
		}
	}()
	defer func() { stop(nil); end(); <-ended }()
	err := l.serve(serving, f)
	if cause := context.Cause(serving); ctx.Err() == nil && cause != nil {
		return cause // an error of the health endpoints
	}
	return err
}

// chooseView combines the flags, of which isGiven reports whether one was given, and the profiles. A profile decides what it
// offers; the flags can only reduce that.
func (o *mcpOptions) chooseView(isGiven func(flag string) bool) (err error) {
	o.door.View.Names, o.door.View.Tools = door.NameMode(o.names), door.ToolMode(o.tools)
	if n := o.door.View.SearchOver; n < 1 {
		return fmt.Errorf("--search-over %d: want a positive number; --tools search always offers the search", n)
	}
	if o.profiles == "" {
		if o.profile != "" {
			return errors.New("--profile needs --profiles FILE")
		}
		return nil
	}
	for _, flag := range []string{"only", "names", "tools", "search-over"} {
		if isGiven(flag) {
			return fmt.Errorf("--%s does not apply to profiles: in %s, give them the key %s", flag, o.profiles, strings.ReplaceAll(flag, "-", "_"))
		}
	}
	if o.door.Profiles, err = readProfiles(o.profiles); err != nil {
		return fmt.Errorf("--profiles: %w", err)
	}
	for name, view := range o.door.Profiles {
		view.ReadOnly = view.ReadOnly || o.door.View.ReadOnly
		view.Exclude = slices.Concat(view.Exclude, o.door.View.Exclude)
		if limit := o.door.View.NameLimit; view.NameLimit == 0 || limit < view.NameLimit {
			view.NameLimit = limit
		}
		o.door.Profiles[name] = view
	}
	name := cmp.Or(o.profile, config.DefaultProfile)
	view, ok := o.door.Profiles[name]
	switch {
	case !ok && o.profile != "":
		return fmt.Errorf("%s has no profile %s", o.profiles, o.profile)
	case ok:
		o.door.View, o.door.Profile = view, name
	}
	return nil
}

// mcpLink keeps a Door connected to a mesh.
type mcpLink struct {
	app    *app
	door   *door.Door
	logger *slog.Logger
	prefix wire.Prefix
	health *daemon.Health
	target atomic.Pointer[daemon.Target] // of the connection
	upOnly bool                          // the mesh is that of an extctl up, unless a flag or NATS_URL chooses another one

	allStarted func()    // lets the door answer the first lists; nil: they do not wait for extensions
	began      time.Time // the extensions of --up start later
	wait       time.Duration
}

// hasChosenMesh reports whether the user has chosen a mesh, with a flag or in the environment.
func hasChosenMesh(a *app) bool {
	return a.nats.Server != "" || a.nats.Context != "" || a.getenv("NATS_URL") != ""
}

// newMCPLink checks the flags.
func newMCPLink(a *app, d *door.Door, logger *slog.Logger, admin string) (*mcpLink, error) {
	prefix, err := wire.ParsePrefix(a.nats.Prefix)
	if err != nil {
		return nil, daemon.UsageError{Err: err}
	}
	health := &daemon.Health{Addr: admin, Logger: logger, WithoutNATS: true}
	health.Metrics(d.WriteMetrics)
	return &mcpLink{app: a, door: d, logger: logger, prefix: prefix, health: health, began: time.Now().Truncate(time.Millisecond)}, nil
}

// retryEvery is the time between two attempts to reach a mesh.
const retryEvery = 500 * time.Millisecond

// maxRetry is the same while the server refuses the credentials, which it logs.
const maxRetry = 10 * time.Second

// run connects to the mesh, and to another one when the first has gone and the flags lead to another address: an
// extctl up that is restarted has another password, and may have another port. While it is away, the selected context of the
// nats command, or another server at the default address, is not taken for it.
func (l *mcpLink) run(ctx context.Context) {
	logged, wait := false, retryEvery
	for ctx.Err() == nil {
		target, err := l.app.nats.Resolve()
		if err == nil {
			l.upOnly = l.upOnly || target.IsUp()
			if l.upOnly && !target.IsUp() && !hasChosenMesh(l.app) {
				err = errors.New("no extctl up is running")
			} else {
				err = l.connect(ctx, target)
			}
		}
		if wait = min(2*wait, maxRetry); !isAuth(err) {
			wait = retryEvery
		}
		if err != nil && ctx.Err() == nil && !logged {
			l.logger.Warn("the mesh is not reachable; trying again until it is", "error", err)
		}
		logged = err != nil
		pause.For(ctx, wait)
	}
}

// connect serves the Door from one mesh until it is lost or ctx ends.
func (l *mcpLink) connect(ctx context.Context, target daemon.Target) error {
	nc, err := target.Connect(ctx, daemon.ConnectOptions{Name: "extctl mcp", Logger: l.logger, NoBuffer: true})
	if err != nil {
		return err
	}
	defer nc.Close()
	l.target.Store(&target)
	l.health.Connected(nc)
	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{Prefix: string(l.prefix), Logger: l.logger})
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	following.Go(func() { // ends with ctx, or when the connection is closed
		if err := catalog.Run(ctx); err != nil && ctx.Err() == nil {
			l.logger.Error("the catalog cannot be read", "error", err)
		}
	})
	client := mesh.NewClient(nc, l.clientOptions(catalog))
	l.door.Attach(catalog, client, func(id string, receive func([]byte)) (stop func(), err error) {
		subject := l.prefix.Event(id)
		if e, ok := catalog.Get(id); ok && e.Spec != nil && e.Spec.Subject != "" { // which may have another prefix
			subject = strings.TrimSuffix(e.Spec.Subject, ".rpc") + ".event"
		}
		before := nc.LastError() // NATS may have denied it once, and permit it now
		s, err := nc.Subscribe(subject, func(m *nats.Msg) { receive(m.Data) })
		if err == nil && nc.FlushTimeout(time.Second) == nil {
			if denied, ok := natsconn.DeniedSubscription(nc.LastError()); ok && denied == subject && nc.LastError() != before {
				_ = s.Unsubscribe()
				return nil, fmt.Errorf("%w: %w", mesh.ErrDenied, nc.LastError())
			}
		}
		return func() { _ = s.Unsubscribe() }, err // an error means that the connection is closed
	})
	if l.allStarted != nil {
		following.Go(func() { l.awaitStart(ctx, catalog) }) // ends with ctx
	}
	for ctx.Err() == nil && !l.isElsewhere(nc, target) {
		pause.For(ctx, retryEvery)
	}
	return nil
}

func (l *mcpLink) clientOptions(catalog *mesh.Catalog) mesh.ClientOptions {
	return mesh.ClientOptions{Prefix: string(l.prefix), Catalog: catalog, Logger: l.logger, Timeout: l.door.CallTimeout()}
}

// dial connects with the credentials of a client, which are those of a nats context.
func (l *mcpLink) dial(ctx context.Context, natsContext string, catalog *mesh.Catalog) (door.Connection, error) {
	target, err := l.target.Load().As(natsContext)
	if err != nil {
		return door.Connection{}, err
	}
	var closed atomic.Bool // nc.IsClosed waits while nats.go dials
	nc, err := target.Connect(ctx, daemon.ConnectOptions{Name: "extctl mcp", Logger: l.logger, NoBuffer: true,
		Extra: []nats.Option{nats.ClosedHandler(func(*nats.Conn) { closed.Store(true) })}})
	if err != nil {
		return door.Connection{}, err
	}
	if err := mayReceive(ctx, nc); err != nil {
		nc.Close()
		return door.Connection{}, fmt.Errorf("the nats context %s: its user may not receive replies, or inbox_prefix is missing: %w", natsContext, err)
	}
	client := mesh.NewClient(nc, l.clientOptions(catalog))
	return door.Connection{Client: client, IsClosed: closed.Load, Close: nc.Close}, nil
}

// mayReceive checks that NATS permits the user to receive replies. Calls without this permission would run.
func mayReceive(ctx context.Context, nc *nats.Conn) error {
	s, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return err
	}
	defer s.Unsubscribe()
	if err := nc.FlushWithContext(ctx); err != nil {
		return err
	}
	if err := nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return err
	}
	return nil
}

// isElsewhere reports whether the mesh must be looked for at another address. A connection that NATS has not closed
// reconnects by itself to the address that it has.
func (l *mcpLink) isElsewhere(nc *nats.Conn, target daemon.Target) bool {
	if nc.IsConnected() {
		return false
	}
	now, err := l.app.nats.Resolve()
	return nc.IsClosed() || err == nil && now.URLs() != target.URLs()
}

// holdLists lets the first lists wait for the extensions if this process, with --up, is about to start the mesh. It returns
// the func that ends this wait; nil if there is none.
func (o *mcpOptions) holdLists(a *app) (allStarted func()) {
	if len(o.up) == 0 || hasChosenMesh(a) {
		return nil
	}
	if _, running := storelock.Running(daemon.StoreDir("")); running {
		return nil
	}
	started := make(chan struct{})
	o.door.Started = started
	return sync.OnceFunc(func() { close(started) })
}

// awaitStart waits until the extensions of --up have started or failed, at most --wait, and lets the first lists be answered. It reads the
// catalog of the door: what it finds there, the door can list.
func (l *mcpLink) awaitStart(ctx context.Context, catalog *mesh.Catalog) {
	quiet := *l.app
	quiet.stdout, quiet.json = io.Discard, true // with json, progress prints nothing
	m := &localMesh{app: &quiet, started: l.began, bridge: bridge.Config{Name: defaultName(upOptions{})}}
	p := &progress{localMesh: m, catalog: catalog, printed: map[string]bool{}}
	waiting, cancel := context.WithDeadline(ctx, l.began.Add(l.wait))
	defer cancel()
	for !p.advance() && pause.For(waiting, 100*time.Millisecond) {
	}
	if ctx.Err() == nil { // otherwise the connection is lost, and the next one waits
		l.allStarted()
	}
}

// keepUp runs a mesh with the extensions under dirs, unless another process of this user does. If that process ends, this
// one takes over.
func keepUp(ctx context.Context, a *app, dirs []string, logger *slog.Logger) {
	quiet := *a
	quiet.stdout, quiet.json = io.Discard, false // stdout is for messages of the protocol
	logged := ""
	for ; ctx.Err() == nil; pause.For(ctx, 2*time.Second) {
		if _, running := storelock.Running(daemon.StoreDir("")); running { // an attempt starts a process, and reads all settings
			logged = ""
			continue
		}
		began := time.Now()
		err := runUp(ctx, &quiet, upOptions{dirs: dirs, noConfig: true, listen: defaultListen, log: daemon.LogFlags{Level: "warn", Format: "text"}})
		if time.Since(began) > time.Minute { // it ran
			logged = ""
		}
		locked, isLocked := errors.AsType[*storelock.LockedError](err)
		if err != nil && ctx.Err() == nil && !(isLocked && locked.Holder.IsHere()) && err.Error() != logged {
			logged = err.Error()
			logger.Error(fmt.Sprintf("the mesh of --up %v has stopped; trying again", dirs), "error", err)
		}
	}
}
