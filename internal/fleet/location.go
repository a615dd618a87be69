package fleet

import (
	"iter"
	"strings"
)

// location is where an instance runs: as announced, or as restored from the catalog.
type location struct {
	host, bridge string
	native       bool // the instance has announced itself, so its bridge is for display only
}

// instanceKey identifies an instance.
type instanceKey struct{ id, instance string }

// setLocation records where an instance of x runs.
func (st *store) setLocation(x *extension, instance string, p *location) {
	instance = strings.Clone(instance)
	st.removeLocation(x, instance)
	x.locations[instance] = p
	if p.bridge == "" || p.native {
		return
	}
	instances := st.instancesByBridge[p.bridge]
	if instances == nil {
		instances = map[instanceKey]struct{}{}
		st.instancesByBridge[p.bridge] = instances
	}
	instances[instanceKey{x.id, instance}] = struct{}{}
}

// removeLocation removes the location of an instance of x.
func (st *store) removeLocation(x *extension, instance string) {
	p := x.locations[instance]
	if p == nil {
		return
	}
	delete(x.locations, instance)
	if instances := st.instancesByBridge[p.bridge]; instances != nil && !p.native {
		if delete(instances, instanceKey{x.id, instance}); len(instances) == 0 {
			delete(st.instancesByBridge, p.bridge)
		}
	}
}

// drop removes x.
func (st *store) drop(x *extension) {
	for instance := range x.locations {
		st.removeLocation(x, instance)
	}
	st.account(x, -x.kept)
	delete(st.exts, x.id)
}

// instancesAt iterates over the instances located at a bridge, in its inventory or only in the catalog. It uses an index:
// the cost of a bridge's start and stop must not grow with the mesh.
func (st *store) instancesAt(bridge string) iter.Seq2[*extension, string] {
	return func(yield func(*extension, string) bool) {
		for r := range st.instancesByBridge[bridge] {
			if !yield(st.exts[r.id], r.instance) {
				return
			}
		}
	}
}
