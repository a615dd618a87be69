package fleet

import (
	"fmt"
	"reflect"
)

// checkAccounting compares the index of instances by bridge and the counted memory with what they are derived from.
func (l *Fleet) checkAccounting() error {
	if want := locations(l); !reflect.DeepEqual(l.instancesByBridge, want) {
		return fmt.Errorf("instances by bridge: %v in the extensions, %v in the index", want, l.instancesByBridge)
	}
	size := 0
	for id, x := range l.exts {
		if size += x.size(); x.size() != x.kept {
			return fmt.Errorf("extension %s: %d bytes stored, %d counted", id, x.size(), x.kept)
		}
	}
	owners := map[string]string{}
	for id, x := range l.exts {
		for _, a := range x.announcements {
			if owner, taken := owners[a.subject()]; taken && owner != id {
				return fmt.Errorf("the subject %s belongs to %s and to %s", a.subject(), id, owner)
			}
			owners[a.subject()] = id
		}
	}
	for name, b := range l.bridges.byName {
		if size += b.kept; b.kept != b.reportSize() {
			return fmt.Errorf("bridge %s: %d bytes stored, %d counted", name, b.reportSize(), b.kept)
		}
	}
	if size != l.size {
		return fmt.Errorf("%d bytes stored, %d counted", size, l.size)
	}
	return nil
}

// locations builds the index of instances by bridge from the extensions.
func locations(l *Fleet) map[string]map[instanceKey]struct{} {
	out := map[string]map[instanceKey]struct{}{}
	for id, x := range l.exts {
		for instance, p := range x.locations {
			if p.bridge == "" {
				continue
			}
			if out[p.bridge] == nil {
				out[p.bridge] = map[instanceKey]struct{}{}
			}
			out[p.bridge][instanceKey{id, instance}] = struct{}{}
		}
	}
	return out
}
