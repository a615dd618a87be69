package mesh

import (
	"slices"
	"strings"
	"sync"
	"weak"

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

// lastForms is the last index over all forms of the tools' names. It has several times the size of the names, so that searches at
// the same time share it, and it is kept for as long as the memory is not needed.
type lastForms struct {
	mu    sync.Mutex
	names weak.Pointer[wire.Names]
	as    uint64 // specChanges
}

// nameForms returns an index over all forms of the tools' names, which must not be changed. It is built when it is needed, because
// names that are not registered are seldom, and the search for similar ones takes as long.
func (c *Catalog) nameForms() *wire.Names {
	c.forms.mu.Lock()
	defer c.forms.mu.Unlock()
	c.mu.RLock()
	as := c.data.specChanges
	if last := c.forms.names.Value(); last != nil && c.forms.as == as {
		c.mu.RUnlock()
		return last
	}
	specs := make([]*Spec, 0, len(c.data.exts))
	for _, e := range c.data.exts {
		specs = append(specs, e.Spec)
	}
	c.mu.RUnlock()
	names := new(wire.Names)
	for _, s := range specs {
		own := make([]string, len(s.Tools))
		for i := range s.Tools {
			own[i] = s.Tools[i].Own
		}
		names.Set(s.ID, own)
	}
	c.forms.names, c.forms.as = weak.Make(names), as
	return names
}
