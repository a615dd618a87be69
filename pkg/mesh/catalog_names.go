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
// first looked up, because most followers never need it and 100,000 tools take 25 MB, and kept from then on: agents try
// names that they remember or make up.
type formIndex struct {
	mu    sync.RWMutex // never taken under Catalog.mu
	names *wire.Names  // guarded by mu; nil until it is needed
}

// read calls f with the index as the catalog is now. f must neither change nor keep it.
func (x *formIndex) read(c *Catalog, f func(*wire.Names)) {
	if c.hasUnindexed() {
		x.update(c)
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	f(x.names)
}

// update adds what the index lacks. Concurrent callers wait for it instead of building another one.
func (x *formIndex) update(c *Catalog) {
	x.mu.Lock()
	defer x.mu.Unlock()
	specs, all := c.takeUnindexed()
	if all {
		x.names = new(wire.Names)
	}
	for id, s := range specs {
		own := make([]string, len(s.Tools))
		for i := range s.Tools {
			own[i] = s.Tools[i].Own
		}
		x.names.Set(id, own)
	}
}

func (c *Catalog) hasUnindexed() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.data.unindexed == nil || len(c.data.unindexed) > 0
}

// takeUnindexed returns the specs that the form index lacks, an empty one for an extension that was removed. If all is set,
// they are all that there are, and the index starts from scratch.
func (c *Catalog) takeUnindexed() (specs map[string]*Spec, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	specs = map[string]*Spec{}
	if all = c.data.unindexed == nil; all {
		for id, e := range c.data.exts {
			specs[id] = e.Spec
		}
	}
	for id := range c.data.unindexed {
		if e, ok := c.data.exts[id]; ok {
			specs[id] = e.Spec
		} else {
			specs[id] = &Spec{ID: id}
		}
	}
	c.data.unindexed = map[string]struct{}{}
	return specs, all
}

// toolsChanged notes that the tools of an extension changed.
func (d *catalogData) toolsChanged(id string) {
	if d.unindexed == nil {
		return
	}
	// Extensions may come and go for years without a lookup: from some number on it is cheaper to build the index again.
	if d.unindexed[id] = struct{}{}; len(d.unindexed) > len(d.exts) {
		d.unindexed = nil
	}
}
