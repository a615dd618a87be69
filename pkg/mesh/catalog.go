package mesh

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
)

// ErrNoCatalog means that nothing answers reads of the catalog's bucket: no registry has created it yet, or JetStream is not
// available. LoadCatalog returns it; Run waits until there is a catalog.
var ErrNoCatalog = catalog.ErrNoCatalog

// CatalogOptions are the settings of a Catalog. The zero value follows the mesh at "ext".
type CatalogOptions struct {
	Prefix string       // of the mesh's subjects. Default "ext"
	Logger *slog.Logger // what a follower met and survived; nil discards it

	// NoSchemas leaves out the schemas of the tools, and their further members. They are most of the memory of a catalog.
	NoSchemas bool
}

// Catalog is a local copy of the mesh's catalog (docs/protocol.md, "Catalog"): every extension with its tools and its state,
// the skills and the hosts. All methods may be called from any goroutine, and reads never wait for the network.
//
// NewCatalog makes an empty one that Run fills and keeps up to date; LoadCatalog reads it once. What a Catalog returns is
// shared: do not change it.
//
// While NATS, JetStream or every registry is down, a Catalog returns its last content; Age is the time since that was known
// to be current.
type Catalog struct {
	loader
	ready chan struct{} // closed when the first load is in
	check time.Duration // from one look at the bucket to the next
	keep  time.Duration // how long what a new or purged bucket lacks is kept

	forms lastForms

	mu       sync.RWMutex
	data     catalogData           // guarded by mu; written by Run's goroutine only
	watchers map[*watcher]struct{} // guarded by mu
}

// Extension is one extension as the catalog shows it. Spec and State are never nil: one that the catalog does
// not have (yet) is an empty document, and its revision is 0.
type Extension struct {
	ID            string
	Spec          *Spec
	State         *StateDoc
	SpecRevision  uint64 // of spec.<id>
	StateRevision uint64 // of state.<id>
}

// NewCatalog makes an empty catalog for Run to fill. It starts nothing.
func NewCatalog(nc *nats.Conn, o CatalogOptions) *Catalog {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Catalog{
		loader:   loader{reader: catalog.Reader{Conn: nc, Prefix: wire.Prefix(cmp.Or(o.Prefix, wire.DefaultPrefix))}, opts: o},
		ready:    make(chan struct{}),
		check:    checkInterval,
		keep:     keepOld,
		data:     newCatalogData(),
		watchers: map[*watcher]struct{}{},
	}
}

// LoadCatalog reads the catalog once. With kinds (spec, state, skill, host), it reads only their documents; its revision is
// then the largest of theirs. It returns ErrNoCatalog, or an error of the connection or of ctx.
func LoadCatalog(ctx context.Context, nc *nats.Conn, o CatalogOptions, kinds ...string) (*Catalog, error) {
	c := NewCatalog(nc, o)
	c.reader.Large = true
	load := c.loadAll
	if len(kinds) > 0 {
		load = func(ctx context.Context) error { return c.loadKinds(ctx, kinds) }
	}
	if err := load(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Ready is closed when the catalog has been loaded for the first time.
func (c *Catalog) Ready() <-chan struct{} { return c.ready }

// WaitSynced waits for the first load. It returns the error of ctx with the name of the bucket.
func (c *Catalog) WaitSynced(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the catalog %s: %w", c.reader.Prefix.Bucket(), ctx.Err())
	}
}

// Get finds an extension by its id.
func (c *Catalog) Get(id string) (Extension, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e, ok := c.data.exts[id]
	return e, ok
}

// All lists the extensions in the order of their ids.
func (c *Catalog) All() []Extension {
	c.mu.RLock()
	out := make([]Extension, 0, len(c.data.exts))
	for _, e := range c.data.exts {
		out = append(out, e)
	}
	c.mu.RUnlock()
	slices.SortFunc(out, func(a, b Extension) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// hookChanges changes whenever the result of withHooks changes.
func (c *Catalog) hookChanges() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.data.hookChanges
}

// withHooks lists the extensions that offer hooks, in no order, as of hookChanges.
func (c *Catalog) withHooks() (found []Extension, changes uint64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, e := range c.data.exts {
		if len(e.Spec.Hooks) > 0 {
			found = append(found, e)
		}
	}
	return found, c.data.hookChanges
}

// Skills lists the skills in the order of their keys.
func (c *Catalog) Skills() []Skill {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return sortedValues(c.data.skills)
}

// Hosts lists the bridges' reports in the order of the bridges' names.
func (c *Catalog) Hosts() []Host {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return sortedValues(c.data.hosts)
}

// Revision is the sequence of the last change to an extension, a skill or a host. Two revisions compare only
// within one catalogID, the creation time of the bucket's stream in RFC 3339; "" where it is not known.
func (c *Catalog) Revision() (catalogID string, revision uint64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.data.id, c.data.revision
}

// Age is the time since the last sign that the catalog is maintained: a change, or the renewal of the leading registry's
// lease, every 2 s. With a large age the catalog may be out of date. Age is never negative, and the largest Duration before
// the first load.
func (c *Catalog) Age() time.Duration {
	c.mu.RLock()
	seen := c.data.seen
	c.mu.RUnlock()
	if seen.IsZero() {
		return 1<<63 - 1
	}
	// A laptop's sleep stops the monotonic clock and not the wall clock; a wall clock that is set back must
	// not make an old catalog young. The larger of the two is right in both cases.
	now := time.Now()
	return max(now.Sub(seen), now.Round(0).Sub(seen.Round(0)), 0)
}
