package mesh

import (
	"encoding/json"
	"sync"
)

// checks are what checks the arguments of one extension's tools.
type checks struct {
	spec *Spec
	mu   sync.Mutex
	of   map[string]*check // by own name
}

// check is made when it is first wanted.
type check struct {
	once sync.Once
	f    func(args json.RawMessage) error // nil: unchecked
}

// checkOf returns what checks a tool's arguments, kept until the spec changes; nil if nothing does.
func (c *Client) checkOf(spec *Spec, t *Tool) func(args json.RawMessage) error {
	if c.opt.Schemas == nil {
		return nil
	}
	v, ok := c.schemas.Load(spec.ID)
	set, _ := v.(*checks)
	if !ok || set.spec != spec {
		set = &checks{spec: spec, of: map[string]*check{}}
		c.schemas.Store(spec.ID, set)
	}
	set.mu.Lock()
	k := set.of[t.Own]
	if k == nil {
		k = &check{}
		set.of[t.Own] = k
	}
	set.mu.Unlock()
	k.once.Do(func() {
		var err error
		if k.f, err = c.opt.Schemas(t.InputSchema); err != nil {
			k.f = nil
			c.opt.Logger.Warn("arguments are not checked", "tool", t.Name, "reason", err)
		}
	})
	return k.f
}
