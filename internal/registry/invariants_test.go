package registry

import (
	"context"
	"reflect"
	"time"
)

// checkAccounting compares the index of instances by bridge and the counted memory with what they are derived from.
func (b *bed) checkAccounting(r *Registry) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), time.Second)
	defer cancel()
	_ = r.inLoop(ctx, func(l *loop) { // it fails after the registry has ended
		if want := locations(l); !reflect.DeepEqual(l.instancesByBridge, want) {
			b.Errorf("instances by bridge: %v in the extensions, %v in the index", want, l.instancesByBridge)
		}
		size := 0
		for id, x := range l.exts {
			if size += x.size(); x.size() != x.kept {
				b.Errorf("extension %s: %d bytes stored, %d counted", id, x.size(), x.kept)
			}
		}
		for name, br := range l.bridges {
			if size += br.kept; br.kept != br.reportSize() {
				b.Errorf("bridge %s: %d bytes stored, %d counted", name, br.reportSize(), br.kept)
			}
		}
		if size != l.size {
			b.Errorf("%d bytes stored, %d counted", size, l.size)
		}
	})
}

// locations builds the index of instances by bridge from the extensions.
func locations(l *loop) map[string]map[instanceKey]struct{} {
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
