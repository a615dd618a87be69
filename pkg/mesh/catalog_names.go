package mesh

import (
	"slices"
	"strings"
	"sync"

	"github.com/extmesh/extmesh/internal/wire"
)

// nameIndex finds tools by their registered names. Names are unique in a whole catalog; between the events of
// one batch two extensions may hold the same name for an instant, hence the list.
type nameIndex map[string][]toolAt

type toolAt struct {
	id    string
	index int // in Spec.Tools
}

func (x nameIndex) add(s *Spec) {
	for i := range s.Tools {
		name := s.Tools[i].Name
		at := append(slices.Clone(x[name]), toolAt{s.ID, i})
		slices.SortFunc(at, func(a, b toolAt) int { return strings.Compare(a.id, b.id) })
		x[name] = at
	}
}

func (x nameIndex) remove(s *Spec) {
	for i := range s.Tools {
		name := s.Tools[i].Name
		rest := slices.DeleteFunc(slices.Clone(x[name]), func(t toolAt) bool { return t.id == s.ID })
		if len(rest) == 0 {
			delete(x, name)
		} else {
			x[name] = rest
		}
	}
}

// Tool finds a tool by its registered name, or by <id>/<own name>.
func (c *Catalog) Tool(name string) (Extension, *Tool, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if at := c.data.names[name]; len(at) > 0 {
		e := c.data.exts[at[0].id]
		return e, &e.Spec.Tools[at[0].index], true
	}
	id, own, ok := strings.Cut(name, "/")
	if !ok {
		return Extension{}, nil, false
	}
	e, ok := c.data.exts[id]
	if !ok {
		return Extension{}, nil, false
	}
	for i := range e.Spec.Tools {
		if t := &e.Spec.Tools[i]; t.Own == own {
			return e, t, true
		}
	}
	return Extension{}, nil, false
}

// formIndex finds tools by any form of their names, for Resolve. It is built when a name that is not a registered one is
// looked up for the first time after a change of tools, because most followers never need it and 100,000 tools take 25 MB.
type formIndex struct {
	mu    sync.RWMutex // never taken under Catalog.mu
	names *wire.Names  // nil until it is needed
	of    uint64       // the catalogData.toolChanges that it has
}

// read calls f with the index as the catalog is now. f must neither change nor keep it.
func (x *formIndex) read(c *Catalog, f func(*wire.Names)) {
	x.update(c)
	x.mu.RLock()
	defer x.mu.RUnlock()
	f(x.names)
}

// update builds the index, unless the present one is up to date. Concurrent callers wait for it instead of building another one.
func (x *formIndex) update(c *Catalog) {
	x.mu.RLock()
	current := x.names != nil && x.of == c.toolChanges()
	x.mu.RUnlock()
	if current {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	specs, changes := c.specs()
	if x.names != nil && x.of == changes {
		return
	}
	x.names, x.of = new(wire.Names), changes
	for id, s := range specs {
		own := make([]string, len(s.Tools))
		for i := range s.Tools {
			own[i] = s.Tools[i].Own
		}
		x.names.Set(id, own)
	}
}

// toolChanges changes whenever the result of specs has other tools.
func (c *Catalog) toolChanges() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.data.toolChanges
}

// specs returns the specs of all extensions, as of toolChanges.
func (c *Catalog) specs() (all map[string]*Spec, changes uint64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all = make(map[string]*Spec, len(c.data.exts))
	for id, e := range c.data.exts {
		all[id] = e.Spec
	}
	return all, c.data.toolChanges
}
