package bridge

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

const (
	trimPoll     = time.Second      // between looks at a fleet that comes up
	trimDelay    = 5 * time.Second  // behind that: the registries shake hands with what is new
	startupLimit = 30 * time.Second // then what still comes up is waited for no longer
)

// settle gives back what it took to bring the fleet up, once it is: reading, forking and shaking hands leave garbage
// behind for as much again as what stays, and a bridge whose extensions have nothing to do makes so little that the
// next collection would be far away, and what that frees would be kept.
func (b *Bridge) trimMemory(ctx context.Context) {
	for began := time.Now(); ; {
		if !sleep(ctx, trimPoll) {
			return
		}
		if !b.fleet.starting() || time.Since(began) > startupLimit {
			break
		}
	}
	if sleep(ctx, trimDelay) {
		debug.FreeOSMemory()
	}
}

// Ready is nil once b does its work: everything that it found at its start has come up, or failed to, or is still at it
// after half a minute. A rolling update that waits for it takes the next host's away when this one's are there.
func (b *Bridge) Ready() error {
	b.mu.Lock()
	ctx, started, done := b.fleetCtx, b.fleetStarted, b.startupDone
	b.mu.Unlock()
	switch {
	case ctx == nil || !b.fleet.planApplied():
		return errors.New("starting: the manifests are not read yet")
	case ctx.Err() != nil:
		return errors.New("stopping")
	case done:
		return nil
	case b.fleet.starting() && time.Since(started) < startupLimit:
		return errors.New("starting: not all extensions have come up, or failed to")
	}
	b.mu.Lock()
	b.startupDone = true
	b.mu.Unlock()
	return nil
}

// comesUp reports whether the first life of some slot has not come as far as saying how it is.
func (f *fleet) starting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.workloads {
		for _, s := range r.instances {
			if state, _ := s.mesh.State(); state == heartbeat.Spawning {
				return true
			}
		}
	}
	return false
}
