package bridge

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

const (
	settlePause = time.Second      // between looks at a fleet that comes up
	settleRest  = 5 * time.Second  // behind that: the registries shake hands with what is new
	settleLimit = 30 * time.Second // then what still comes up is waited for no longer
)

// settle gives back what it took to bring the fleet up, once it is: reading, forking and shaking hands leave garbage
// behind for as much again as what stays, and a bridge whose extensions have nothing to do makes so little that the
// next collection would be far away, and what that frees would be kept.
func (b *Bridge) settle(ctx context.Context) {
	for began := time.Now(); ; {
		if !sleep(ctx, settlePause) {
			return
		}
		if !b.fleet.comesUp() || time.Since(began) > settleLimit {
			break
		}
	}
	if sleep(ctx, settleRest) {
		debug.FreeOSMemory()
	}
}

// comesUp reports whether the first life of some slot has not come as far as saying how it is.
func (f *fleet) comesUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.units {
		for _, s := range r.slots {
			if state, _ := s.mesh.State(); state == heartbeat.Spawning {
				return true
			}
		}
	}
	return false
}
