package registry

import (
	"context"
	"reflect"
	"time"
)

// checkBooks compares what a registry that still runs keeps twice: who is at a bridge, and how much is kept.
func (b *bed) checkBooks(r *Registry) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), time.Second)
	defer cancel()
	_ = r.ask(ctx, func(l *loop) { // it fails where the registry has ended
		if want := residences(l); !reflect.DeepEqual(l.residents, want) {
			b.Errorf("at the bridges are %v, say the extensions, and %v, says the index", want, l.residents)
		}
		size := 0
		for id, x := range l.exts {
			if size += x.size(); x.size() != x.kept {
				b.Errorf("of %s %d bytes are kept, and %d counted", id, x.size(), x.kept)
			}
		}
		for name, br := range l.bridges {
			if size += br.kept; br.kept != br.reportSize() {
				b.Errorf("of bridge %s %d bytes are kept, and %d counted", name, br.reportSize(), br.kept)
			}
		}
		if size != l.size {
			b.Errorf("%d bytes are kept, and %d counted", size, l.size)
		}
	})
}

// residences is what the index of residents has to be.
func residences(l *loop) map[string]map[residence]struct{} {
	out := map[string]map[residence]struct{}{}
	for id, x := range l.exts {
		for instance, p := range x.places {
			if p.bridge == "" {
				continue
			}
			if out[p.bridge] == nil {
				out[p.bridge] = map[residence]struct{}{}
			}
			out[p.bridge][residence{id, instance}] = struct{}{}
		}
	}
	return out
}
