package door

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// Options are a Door's settings. The zero value works.
type Options struct {
	Version     string      // of the program, shown to clients
	View        ViewOptions // what clients see that do not choose a profile
	Profile     string      // the name of View. Default: default
	Profiles    map[string]ViewOptions
	Agent       string          // the caller's identity on the mesh; default: the name of the MCP client
	CallTimeout time.Duration   // default 5 min
	Wait        time.Duration   // for the first copy of the catalog, and Started, before the first list is answered. Default 2 s; < 0: none
	Started     <-chan struct{} // closed when the extensions that start together with this process have started or failed; nil: there are none
	MaxResult   int             // bytes; a larger result is replaced by an error. Default 16 MiB
	MaxCalls    int             // of one client at once, or of all clients with one token. Default 256
	Logger      *slog.Logger    // default: discard
}

// maxCallsOfDoor limits the calls of all clients together.
const maxCallsOfDoor = 4096

// Door is an MCP server in front of a mesh.
type Door struct {
	opt      Options
	view     *viewState // of clients that do not choose a profile
	profiles map[string]*viewState
	started  time.Time
	attached chan *backend // buffered, 1; the last one that Run has not seen
	ready    chan struct{} // closed when the first view of the catalog is there
	whole    chan struct{} // closed when the first view after Options.Started is there
	listed   chan struct{} // closed when, after that, the other lists of all extensions have been requested once
	mesh     atomic.Pointer[backend]
	lists    lists        // used by the goroutine of Run only
	running  atomic.Int64 // calls in flight
	metrics  *metrics

	attaching sync.Mutex // held by Attach

	updates updates
}

// backend is the mesh.
type backend struct {
	catalog *mesh.Catalog
	client  *mesh.Client
	events  Events
}

// New makes a Door without a mesh; see Attach. The error is about the options.
func New(o Options) (*Door, error) {
	o.CallTimeout = cmp.Or(o.CallTimeout, 5*time.Minute)
	o.Wait = max(0, cmp.Or(o.Wait, 2*time.Second))
	o.MaxResult = cmp.Or(o.MaxResult, 16<<20)
	o.MaxCalls = cmp.Or(o.MaxCalls, 256)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Door{
		opt:      o,
		started:  time.Now(),
		attached: make(chan *backend, 1),
		ready:    make(chan struct{}),
		whole:    make(chan struct{}),
		listed:   make(chan struct{}),
		lists:    newLists(o.Logger),
		metrics:  newMetrics(),
	}
	var err error
	own := cmp.Or(o.Profile, config.DefaultProfile)
	if d.view, err = newViewState(d, own, o.View); err != nil {
		return nil, err
	}
	d.profiles = map[string]*viewState{own: d.view}
	for name, view := range o.Profiles {
		if name == own {
			continue // it is View
		}
		if d.profiles[name], err = newViewState(d, name, view); err != nil {
			return nil, fmt.Errorf("profile %s: %w", name, err)
		}
	}
	return d, nil
}

// Attach connects the Door to a mesh, or to another one after the connection to the first was lost. Until the new catalog
// has been read, clients see the tools of the old one. The caller runs the catalog, which client uses. The time limit of
// client must be CallTimeout: a context with a deadline would be a tenth of the cost of a call.
func (d *Door) Attach(catalog *mesh.Catalog, client *mesh.Client, events Events) {
	b := &backend{catalog, client, events}
	d.attaching.Lock()
	defer d.attaching.Unlock()
	d.mesh.Store(b)
	select {
	case <-d.attached:
	default:
	}
	d.attached <- b
}

// CallTimeout is the time limit of calls, for mesh.ClientOptions.
func (d *Door) CallTimeout() time.Duration { return d.opt.CallTimeout }

var errCancelled = errors.New("the client cancelled the call")

// Times of list_changed: after a change the Door waits until no other change comes, but not for long.
const (
	settleAfter = 100 * time.Millisecond
	settleMost  = 500 * time.Millisecond
)

// Run keeps the views up to date until ctx ends, and returns ctx's error.
func (d *Door) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	stop := func() {}
	defer func() { stop() }()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	var requests sync.WaitGroup
	defer requests.Wait()
	request := func(l *list) {
		client := d.mesh.Load().client
		requests.Go(func() { d.lists.results <- l.request(ctx, client) }) // owned by Run; ends within listTimeout, or with ctx
	}
	starting := d.opt.Started // nil when the extensions have started or failed
	waiting := false
	var followed *backend
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-d.attached:
			stop()
			stop = watch(ctx, b.catalog, changed)
			continue
		case <-starting:
			starting = nil
		case <-due.C: // an unavailable extension is to be hidden, or a list to be requested again
		case l := <-d.lists.results:
			d.lists.store(l, time.Now())
			if d.lists.start(request); d.lists.isBusy() {
				if !waiting { // for the other results, but not for long
					waiting = true
					due.Reset(settleMost)
				}
				continue
			}
		case <-changed:
			if d.isReady() {
				settle(ctx, changed)
			}
		}
		if b := d.mesh.Load(); b != nil && isLoaded(b.catalog) {
			if b != followed {
				followed = b
				d.updates.reconnect(b, d.opt.Logger) // the catalog has the subjects of the events
			}
			now := time.Now()
			extensions := b.catalog.All()
			d.lists.setSkills(b.catalog.Skills())
			next := d.lists.update(extensions, now)
			next = earlier(next, d.render(extensions, now))
			d.lists.start(request)
			d.noteWhole(starting == nil)
			waiting = false
			due.Reset(min(max(next.Sub(now), settleMost), time.Hour))
		}
	}
}

// watch signals changes of the catalog that clients may see, until stop is called.
func watch(ctx context.Context, catalog *mesh.Catalog, changed chan<- struct{}) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { // owned by Run; ends with ctx
		_ = catalog.Watch(ctx, func(ev mesh.Event) {
			if ev.Op != "synced" && ev.Kind() != wire.KindSpec && ev.Kind() != wire.KindState && ev.Kind() != wire.KindSkill {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// isLoaded reports whether a catalog has been read.
func isLoaded(catalog *mesh.Catalog) bool { return isClosed(catalog.Ready()) }

// settle waits until no change has come for settleAfter, or settleMost has passed.
func settle(ctx context.Context, changed <-chan struct{}) {
	latest := time.After(settleMost)
	for {
		select {
		case <-ctx.Done():
			return
		case <-latest:
			return
		case <-time.After(settleAfter):
			return
		case <-changed:
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// closeOnce closes a channel that only the calling goroutine closes.
func closeOnce(c chan struct{}) {
	if !isClosed(c) {
		close(c)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// render renders all views, and returns when an extension will have to be hidden.
func (d *Door) render(extensions []mesh.Extension, now time.Time) (next time.Time) {
	d.lists.tools.update(extensions, d.opt.Logger)
	d.lists.noteUnavailable(extensions, now)
	next = now.Add(time.Hour)
	for _, v := range d.profiles {
		next = earlier(next, v.render(extensions, &d.lists, now))
	}
	closeOnce(d.ready)
	return next
}

// noteWhole lets the first lists be answered when the extensions of Options.Started have started or failed.
func (d *Door) noteWhole(started bool) {
	if !started {
		return
	}
	if closeOnce(d.whole); !d.lists.isBusy() {
		closeOnce(d.listed)
	}
}

// awaitReady waits for the first view of the catalog, for as long as the first list may wait after the start.
func (d *Door) awaitReady(ctx context.Context) { d.await(ctx, d.ready) }

func (d *Door) await(ctx context.Context, ready <-chan struct{}) {
	left := time.Until(d.started.Add(d.opt.Wait))
	if isClosed(ready) || left <= 0 {
		return
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-ready:
	case <-t.C:
	case <-ctx.Done():
	}
}

func (d *Door) isReady() bool { return isClosed(d.ready) }

// Ready reports why clients cannot use tools yet, for the /readyz page of internal/daemon. After the first copy of the
// catalog it returns nil: without a connection to the mesh, clients get answers that say so.
func (d *Door) Ready() error {
	switch {
	case !d.isConnected():
		return errors.New("waiting for NATS")
	case !d.isReady():
		return errors.New("reading the catalog")
	}
	return nil
}

// isConnected reports whether the Door has a mesh.
func (d *Door) isConnected() bool { return d.mesh.Load() != nil }
