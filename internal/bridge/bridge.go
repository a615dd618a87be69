package bridge

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// Config is what a Bridge is made of.
type Config struct {
	Name     string                        // on the mesh; at most one live bridge may have it
	Host     string                        // this machine's name, for people
	Prefix   mesh.Prefix                   // default mesh.DefaultPrefix
	Version  string                        // of this program; what children are told unless Settings say otherwise
	Settings config.Config                 // extensions.yaml; config.Default() has every default
	Reread   func() (config.Config, error) // the settings again, for a reload; nil: they stay
	StateDir string                        // under it each extension has a directory of its own
	Environ  []string                      // what children inherit from; default os.Environ()
	Gate     gate.Host                     // where requirements are looked up; default this host
	Mesh     gate.Credentials              // with which this process reaches NATS; no extension gets them
	LameDuck *mesh.LameDuck                // of the connection; nil: stay until its server closes it
	Watchdog func()                        // waited for before the first child is started; nil: there is none
	Logger   *slog.Logger                  // default: discard
}

// Bridge runs the extensions of one host and stands in for them on the mesh.
type Bridge struct {
	cfg    Config
	nc     *nats.Conn
	node   *mesh.Node
	memory *memory
	fleet  fleet
	runID  string // which of all the runs of bridges of its name this is
	since  time.Time
	log    *slog.Logger

	reloadMu        sync.Mutex    // one plan is made and adopted at a time
	reportMu        sync.Mutex    // what is reported last is what was adopted last
	reloaded        chan struct{} // poked when the settings have been read again
	planAdopted     chan struct{} // poked when a plan has been
	trimming        coalescedTask // when the fleet has changed
	otherBridges    chan identity // others of this name that were heard of
	reportContested chan struct{} // poked when one of them may have reported in b's place

	mu           sync.Mutex
	settings     config.Config
	current      plan
	removed      []string        // declared no longer, and said so once
	logged       map[string]bool // what the log says of the plan that was made last
	fleetCtx     context.Context // of everything that the fleet runs; set by Run
	fleetStarted time.Time       // when that was
	startupDone  bool            // what it ran then is up, or was waited for long enough
}

// New makes a bridge on nc. It starts nothing.
func New(nc *nats.Conn, cfg Config) *Bridge {
	if cfg.Prefix == "" {
		cfg.Prefix = mesh.DefaultPrefix
	}
	if cfg.Environ == nil {
		cfg.Environ = os.Environ()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Bridge{cfg: cfg, nc: nc, log: cfg.Logger, settings: cfg.Settings, runID: nuid.Next(), otherBridges: make(chan identity, 4), reportContested: make(chan struct{}, 1),
		reloaded: make(chan struct{}, 1), planAdopted: make(chan struct{}, 1), since: time.Now().UTC().Truncate(time.Millisecond)}
	b.memory = newMemory(cfg.Settings.MaxBuffered)
	b.node = mesh.NewNode(nc, mesh.NodeOptions{Prefix: cfg.Prefix, HeartbeatInterval: cfg.Settings.HeartbeatInterval, Logger: cfg.Logger,
		LameDuck: cfg.LameDuck, Reserve: b.memory.reserve})
	b.fleet = fleet{newInstance: b.newInstance, workloads: map[string]*deployment{}, stopping: map[string]<-chan struct{}{}}
	return b
}

// Run finds the extensions, starts them side by side, and keeps them running until ctx ends; then all of them
// stop, side by side, and Run returns when nothing that it started is left. The error is that of a start
// that could not be: an unreadable configuration, a name that is taken.
func (b *Bridge) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopControl, err := b.serveControl(ctx)
	if err != nil {
		return err
	}
	defer stopControl()
	var nameErr error
	var naming sync.WaitGroup
	naming.Go(func() { // owned by Run; ends with ctx, or ends it
		if nameErr = b.guardName(ctx); nameErr != nil {
			cancel(mesh.ErrRemoved) // what it runs will not return
		}
	})
	defer naming.Wait()
	defer cancel(nil)
	requests, unsubscribe, err := b.subscribeAnnounceRequests()
	if err != nil {
		return err
	}
	defer unsubscribe()
	p := b.makePlan(ctx)
	if b.cfg.Watchdog != nil {
		b.cfg.Watchdog()
	}
	defer b.endLeftovers()()
	// What runs on the mesh ends before the node that speaks for it.
	nodeCtx, stopNode := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	var nodeErr error
	wg.Go(func() { // owned by Run; ends when the fleet has
		if nodeErr = b.node.Run(nodeCtx); nodeErr != nil {
			cancel(nil)
		}
	})
	if ctx.Err() == nil { // or it stops already, and perhaps because another one is there
		b.startFleet(ctx, p)
	}
	wg.Go(func() { b.repeatReports(nodeCtx, requests) }) // owned by Run; ends when the fleet has
	defer b.trimming.start(ctx, b.trimMemory)()
	var watching sync.WaitGroup
	watching.Go(func() { b.watch(ctx) }) // owned by Run; ends with ctx
	<-ctx.Done()
	b.mu.Lock()
	running := b.current.host.Extensions
	b.mu.Unlock()
	b.log.Info("stopping the extensions", "extensions", running)
	watching.Wait() // it may be starting something
	b.awaitReload() // so may that; a later one finds ctx ended
	b.fleet.wait()
	stopNode()
	wg.Wait()
	naming.Wait()
	if nameErr == nil { // or the host's key, and the skills, are another one's
		b.publishFinalReports() // nobody reports any more
	}
	b.flush()
	return errors.Join(nodeErr, nameErr)
}

// takeOver ends what an earlier run of a bridge of this name and state directory left behind, if that bridge and its
// guard were killed. release is called when nothing runs any more.
func (b *Bridge) endLeftovers() (release func()) {
	if b.cfg.StateDir == "" {
		return func() {}
	}
	ended, release, err := child.TakeOver(filepath.Join(b.cfg.StateDir, ".bridge-"+b.cfg.Name))
	if err != nil {
		b.log.Warn("processes of this bridge would not be found after it and its guard were killed", "error", err)
	}
	if ended > 0 {
		b.log.Warn("ended processes that an earlier run of this bridge had left behind", "processes", ended)
	}
	return release
}

// config is the settings as they were read last.
func (b *Bridge) config() config.Config {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.settings
}

// fleetContext is that of everything that the fleet runs, nil before there is a plan.
func (b *Bridge) fleetContext() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fleetCtx
}

// awaitReload waits for a reload that is under way.
func (b *Bridge) awaitReload() {
	b.reloadMu.Lock()
	defer b.reloadMu.Unlock()
}

// begin makes p the first plan.
func (b *Bridge) startFleet(ctx context.Context, p plan) {
	b.reloadMu.Lock() // a reload that was quicker would be undone
	defer b.reloadMu.Unlock()
	b.mu.Lock()
	b.fleetCtx, b.fleetStarted = ctx, time.Now()
	b.mu.Unlock()
	b.adopt(ctx, p)
}

// adopt makes p the current plan. The caller holds reloading, or is Run before anybody else can be.
func (b *Bridge) adopt(ctx context.Context, p plan) (started, replaced, stopped []string) {
	b.mu.Lock()
	removed := removedDeclarations(b.current.declared, p.declared)
	b.current, b.removed = p, append(b.removed, removed...)
	b.mu.Unlock()
	started, replaced, stopped = b.fleet.apply(ctx, p.workloads)
	if len(started)+len(replaced)+len(stopped) > 0 {
		b.trimming.request()
	}
	b.publishReports()
	b.publishRemovals(removed)
	select {
	case b.planAdopted <- struct{}{}:
	default:
	}
	return started, replaced, stopped
}

// reload reads everything again and adopts it. A configuration that cannot be read changes nothing.
func (b *Bridge) reload(ctx context.Context) (started, replaced, stopped []string, err error) {
	b.reloadMu.Lock()
	defer b.reloadMu.Unlock()
	if b.cfg.Reread != nil {
		settings, err := b.cfg.Reread()
		if err != nil {
			return nil, nil, nil, err
		}
		b.mu.Lock()
		b.settings = settings
		b.mu.Unlock()
		select {
		case b.reloaded <- struct{}{}:
		default:
		}
	}
	p := b.makePlan(ctx)
	b.carryOver(&p)
	fleetCtx := b.fleetContext()
	if fleetCtx == nil || fleetCtx.Err() != nil {
		return nil, nil, nil, errors.New("the bridge is not running")
	}
	started, replaced, stopped = b.adopt(fleetCtx, p)
	b.log.Info("reloaded", "started", started, "replaced", replaced, "stopped", stopped)
	return started, replaced, stopped, nil
}

// flush lets the last words reach the server, for a second at most: a stop does not fail for a server that is slow, or
// goes.
func (b *Bridge) flush() {
	if b.nc.Status() == nats.CONNECTED {
		_ = b.nc.FlushTimeout(time.Second)
	}
}

// status is what this bridge runs, as it sees it; all of it, unless of names an extension.
func (b *Bridge) status(of target) Status {
	s := Status{Bridge: b.cfg.Name, Host: b.cfg.Host, Version: b.cfg.Version, Since: b.since, Instances: []InstanceStatus{}}
	targets := b.fleet.all()
	if of.ID != "" {
		targets = b.fleet.find(of.ID, of.Instance)
	}
	for _, inst := range targets {
		i := InstanceStatus{ID: inst.workload.id(), Instance: inst.mesh.Instance(), Breaker: inst.breakerState()}
		i.State, i.Reason = inst.mesh.State()
		inst.history.fill(&i)
		s.Instances = append(s.Instances, i)
	}
	return s
}
