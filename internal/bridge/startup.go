package bridge

import (
	"errors"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// startupLimit is the time after which instances that are still starting are not waited for.
const startupLimit = 30 * time.Second

// Ready returns nil once everything that the bridge found at its start is ready or has failed, or after half a minute. A
// rolling update can wait for it before it stops the next host.
func (b *Bridge) Ready() error {
	b.mu.Lock()
	ctx, started, done := b.fleetCtx, b.fleetStarted, b.startupDone
	b.mu.Unlock()
	switch {
	case ctx == nil || !b.fleet.planApplied():
		return errors.New("starting: the manifests have not been read yet")
	case ctx.Err() != nil:
		return errors.New("stopping")
	case done:
		return nil
	case b.fleet.starting() && time.Since(started) < startupLimit:
		return errors.New("starting: some extensions are neither ready nor failed yet")
	}
	b.mu.Lock()
	b.startupDone = true
	b.mu.Unlock()
	return nil
}

// starting reports whether an instance has neither become ready nor failed yet.
func (f *fleet) starting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.workloads {
		for _, s := range r.instances {
			if state, _ := s.mesh.State(); state == heartbeat.Spawning || state == heartbeat.Restarting {
				return true
			}
		}
	}
	return false
}
