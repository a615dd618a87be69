package bridge

import (
	"encoding/json"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/supervise"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// makeSlot makes a replica of u.
func (b *Bridge) makeSlot(u *unit, replica int) *slot {
	s := &slot{
		unit: u, host: hostInfo{agentVersion: b.agentVersion()},
		mesh:   b.node.Join(u.announce),
		memory: b.memory,
		log:    b.log.With("extension", u.id()),
		lines:  &ring{},
		noisy:  noiseBucket(),
		vocal:  eventBucket(),
	}
	if u.replicas > 1 {
		s.log = s.log.With("replica", replica)
	}
	kind := manifest.Stdio
	if u.transport.Type == manifest.HTTP {
		kind = manifest.HTTP
	}
	s.breaker = breaker.New("ext:"+string(kind)+":"+u.id(), breaker.Settings{OnChange: s.changed})
	s.mesh.SetBreaker(s.breakerState)
	s.sup = supervise.New(supervise.Options{Policy: u.policy, Run: s.life, Notify: s.transition})
	events, log := b.cfg.Prefix.Event(u.id()), b.cfg.Prefix.Log(u.id())
	s.events = func(n []byte) error { return b.nc.Publish(events, n) }
	s.toMesh = func(l logLine) {
		// What is lost here is still in the ring and in our own log.
		if data, err := json.Marshal(l); err == nil {
			_ = b.nc.Publish(log, data)
		}
	}
	return s
}
