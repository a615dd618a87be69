package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
)

// Config configures a Bridge.
type Config struct {
	Name     string                        // unique on the mesh
	Host     string                        // the name of this machine, shown to operators
	Prefix   wire.Prefix                   // default mesh.DefaultPrefix
	Version  string                        // of this program; sent to children unless Settings has an AgentVersion
	Settings config.Config                 // extensions.yaml; config.Default() returns the defaults
	Reread   func() (config.Config, error) // reads the settings again on a reload; nil: they do not change
	StateDir string                        // contains a directory for each extension
	Environ  []string                      // the environment that children inherit from; default os.Environ()
	Gate     gate.Host                     // where requirements are looked up; default this host
	Mesh     gate.Credentials              // of this process for NATS; never passed to an extension
	Watchdog func()                        // waits until the watchdog runs; called before the first child is started; nil: there is no watchdog
	Logger   *slog.Logger                  // default: discard
	Quiet    bool                          // refused manifests, and the only search path if it is faulty, are not logged: the caller prints them
}

// Bridge runs the extensions of one host and serves them on the mesh.
type Bridge struct {
	cfg       Config
	nc        *nats.Conn
	node      *serve.Publisher
	memory    *memory
	planner   *planner
	fleet     fleet
	turns     *startTurns
	name      *nameGuard
	inventory *inventory
	calls     *calls.Log
	log       *slog.Logger

	reloadMu sync.Mutex // held while a plan is made and adopted
	reloaded signal     // signalled when the settings have been read again

	mu           sync.Mutex
	current      plan
	fleetCtx     context.Context // the parent of everything that the fleet runs; set by Run
	fleetStarted time.Time       // when fleetCtx was set
	startupDone  bool            // the first plan is running, or startupLimit has passed
}

func (cfg Config) withDefaults() Config {
	if cfg.Prefix == "" {
		cfg.Prefix = wire.DefaultPrefix
	}
	if cfg.Environ == nil {
		cfg.Environ = os.Environ()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// New returns a Bridge that uses nc. It starts nothing.
func New(nc *nats.Conn, cfg Config) *Bridge {
	cfg = cfg.withDefaults()
	b := &Bridge{cfg: cfg, nc: nc, log: cfg.Logger, planner: newPlanner(cfg), calls: calls.NewLog(), reloaded: newSignal()}
	b.name = newNameGuard(nc, cfg, func() {
		time.AfterFunc(contestPause, b.inventory.requestFull) // it only sets a flag, also after the end of the bridge
	})
	b.turns = newStartTurns(MaxStarts())
	b.inventory = newInventory(wire.Inventory{Bridge: cfg.Name, Run: b.name.self.Run, IntervalMS: cfg.Settings.HeartbeatInterval.Milliseconds()})
	b.memory = newMemory(cfg.Settings.MaxBuffered)
	b.node = serve.NewPublisher(nc, serve.PublisherOptions{Prefix: cfg.Prefix, HeartbeatInterval: cfg.Settings.HeartbeatInterval, Logger: cfg.Logger,
		Reserve: b.memory.reserve})
	b.fleet = fleet{newInstance: b.newInstance, workloads: map[string]*deployment{}, stopping: map[string]<-chan struct{}{}, drained: map[string]bool{}}
	return b
}

// Run finds the extensions, starts them in parallel, and keeps them running until ctx ends; then it stops all of them
// in parallel and returns when nothing that it started is left. It returns an error if it cannot start, for example
// because the configuration cannot be read or the name is in use.
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
	naming.Go(func() { // owned by Run; ends with ctx, or cancels it
		if nameErr = b.name.run(ctx); nameErr != nil {
			cancel(errRemoved) // another bridge took the name, so this one's instances do not return
		}
	})
	defer naming.Wait()
	defer cancel(nil)
	// Before the first inventory: a registry that starts between the two would otherwise not receive one.
	requests, err := b.nc.Subscribe(b.cfg.Prefix.AnnounceRequest(), func(*nats.Msg) { b.inventory.requestFull() })
	if err != nil {
		return fmt.Errorf("subscribing to announce requests: %w", err)
	}
	defer func() { _ = requests.Unsubscribe() }() // it fails only on a closed connection
	p := b.planner.makePlan(ctx)
	if b.cfg.Watchdog != nil {
		b.cfg.Watchdog()
	}
	defer b.endLeftovers()()
	// The node outlives the instances, because it publishes their last messages.
	nodeCtx, stopNode := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	var nodeErr error
	wg.Go(func() { // owned by Run; ends with nodeCtx, after the fleet
		if nodeErr = b.node.Run(nodeCtx); nodeErr != nil {
			cancel(nil)
		}
	})
	if ctx.Err() == nil { // it may be stopping already, for example because the name is in use
		b.startFleet(ctx, p)
	}
	wg.Go(func() { b.runInventory(nodeCtx) }) // owned by Run; ends with nodeCtx, after the fleet
	var watching sync.WaitGroup
	watching.Go(func() { b.watch(ctx) }) // owned by Run; ends with ctx
	<-ctx.Done()
	b.log.Info("stopping the extensions", "extensions", b.plan().ids())
	watching.Wait() // it may be starting an instance
	b.awaitReload() // so may a reload; a later one finds that ctx has ended
	b.fleet.wait()
	stopNode()
	wg.Wait()
	naming.Wait()
	b.flush()
	return errors.Join(nodeErr, nameErr)
}

// endLeftovers stops the processes that an earlier run of a bridge with this name and state directory left running,
// which happens if that bridge and its guard were killed. The caller calls release when no child is running any more.
func (b *Bridge) endLeftovers() (release func()) {
	if b.cfg.StateDir == "" {
		return func() {}
	}
	ended, release, err := child.TakeOver(filepath.Join(b.cfg.StateDir, ".bridge-"+b.cfg.Name))
	if err != nil {
		b.log.Warn("cannot track child processes: they would be left running if this bridge and its guard were killed", "error", err)
	}
	if ended > 0 {
		b.log.Warn("stopped processes left over from an earlier run of this bridge", "processes", ended)
	}
	return release
}

// plan returns the current plan.
func (b *Bridge) plan() plan {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current
}

// fleetContext returns the parent context of everything that the fleet runs, or nil before there is a plan.
func (b *Bridge) fleetContext() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fleetCtx
}

// awaitReload waits for a reload in progress.
func (b *Bridge) awaitReload() {
	b.reloadMu.Lock()
	defer b.reloadMu.Unlock()
}

// startFleet adopts the first plan.
func (b *Bridge) startFleet(ctx context.Context, p plan) {
	b.reloadMu.Lock() // otherwise it could undo a reload that finished first
	defer b.reloadMu.Unlock()
	b.mu.Lock()
	b.fleetCtx, b.fleetStarted = ctx, time.Now()
	b.mu.Unlock()
	b.adopt(ctx, p)
}

// adopt makes p the current plan. The caller holds reloadMu.
func (b *Bridge) adopt(ctx context.Context, p plan) (started, replaced, stopped []string) {
	b.mu.Lock()
	b.current = p
	b.mu.Unlock()
	started, replaced, stopped = b.fleet.apply(ctx, p.workloads)
	b.calls.Keep(p.ids())
	b.inventory.requestFull()
	return started, replaced, stopped
}

// reload reads the settings and manifests again and adopts the result. If the settings cannot be read, nothing changes, or the
// previous ones are used if the reload is for changed manifests, since nothing would apply those later.
func (b *Bridge) reload(ctx context.Context, manifests bool) (started, replaced, stopped []string, err error) {
	b.reloadMu.Lock()
	defer b.reloadMu.Unlock()
	switch err := b.planner.reread(); {
	case err != nil && manifests:
		b.log.Error("the settings cannot be read; the previous ones are used", "error", err)
	case err != nil:
		return nil, nil, nil, err
	}
	b.memory.setLimit(b.planner.config().MaxBuffered)
	b.reloaded.send()
	p := b.planner.makePlan(ctx)
	b.planner.carryOver(&p, b.plan())
	fleetCtx := b.fleetContext()
	if fleetCtx == nil || fleetCtx.Err() != nil {
		return nil, nil, nil, errors.New("the bridge is not running")
	}
	started, replaced, stopped = b.adopt(fleetCtx, p)
	for _, s := range b.fleet.all() {
		s.retryStart()
	}
	b.log.Info("reloaded", "started", started, "replaced", replaced, "stopped", stopped)
	return started, replaced, stopped, nil
}

// contestPause is the time after which the inventory is published again when another bridge with the same name has started:
// that bridge has exited by then.
const contestPause = 2 * time.Second

// runInventory publishes the inventory until ctx ends.
func (b *Bridge) runInventory(ctx context.Context) {
	connected := b.nc.StatusChanged(nats.CONNECTED)
	defer b.nc.RemoveStatusListener(connected)
	v, subject := b.inventory, b.cfg.Prefix.HostReport(b.cfg.Name)
	v.contents, v.log = b.contents, b.log
	v.interval = func() time.Duration { return b.planner.config().HeartbeatInterval }
	v.limit = func() int { return min(wire.MaxInventory, int(b.nc.MaxPayload())) }
	v.publish = func(m wire.Inventory) error {
		data, err := json.Marshal(m)
		if err != nil {
			return err
		}
		return b.nc.Publish(subject, data)
	}
	v.run(ctx, connected)
}

// contents returns what the current plan contributes to the inventory.
func (b *Bridge) contents() contents {
	p := b.plan()
	c := contents{skills: p.skills, host: wire.InventoryHost{Host: b.cfg.Host, Version: b.cfg.Version, Since: b.name.self.Since, Problems: p.problems}}
	for _, d := range p.declared {
		c.services = append(c.services, wire.InventoryInstance{Announce: d.announce})
	}
	return c
}

// find returns the instances that t means: all of the bridge if it has no id.
func (b *Bridge) find(t target) []*instance {
	if t.ID == "" {
		return b.fleet.all()
	}
	return b.fleet.find(t.ID, t.Instance)
}

// searchPaths returns the absolute directories in which the bridge looks for manifests.
func (b *Bridge) searchPaths() []string {
	paths := []string{}
	settings := b.planner.config()
	if !settings.Enabled {
		return paths
	}
	for _, dir := range settings.Roots() {
		if abs, err := filepath.Abs(dir); err == nil { // it fails only if there is no working directory
			dir = abs
		}
		paths = append(paths, dir)
	}
	return paths
}

// flush waits at most a second for the server to receive the last messages. A slow or stopping server does not make
// the shutdown fail.
func (b *Bridge) flush() {
	if b.nc.Status() == nats.CONNECTED {
		_ = b.nc.FlushTimeout(time.Second)
	}
}

// status returns what this bridge runs: everything, or the extension or instance that of names.
func (b *Bridge) status(of target) Status {
	s := Status{Bridge: b.cfg.Name, Host: b.cfg.Host, Version: b.cfg.Version, Since: b.name.self.Since, Instances: []InstanceStatus{}, SearchPaths: b.searchPaths()}
	for _, inst := range b.find(of) {
		i := InstanceStatus{ID: inst.workload.id(), Instance: inst.mesh.Instance(), Breaker: inst.breakerState()}
		i.State, i.Reason = inst.mesh.State()
		inst.history.fill(&i)
		s.Instances = append(s.Instances, i)
	}
	return s
}
