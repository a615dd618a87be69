package bridge

import (
	"encoding/json"
	"time"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/supervise"
)

// makeSlot makes a replica of u.
func (b *Bridge) makeSlot(u *unit, replica int) *slot {
	s := &slot{
		unit: u, host: hostInfo{agentVersion: b.agentVersion()},
		mesh:  b.node.Join(u.announce),
		log:   b.log.With("extension", u.id()),
		lines: &ring{},
	}
	if u.replicas > 1 {
		s.log = s.log.With("replica", replica)
	}
	s.breaker = breaker.New("ext:stdio:"+u.id(), breaker.Settings{})
	s.sup = supervise.New(supervise.Options{Policy: u.policy, Life: s.life, Notify: s.transition})
	events, log := b.cfg.Prefix.Event(u.id()), b.cfg.Prefix.Log(u.id())
	s.events = func(n []byte) error { return b.nc.Publish(events, n) }
	s.toMesh = func(line string) {
		// What is lost here is still in the ring and in our own log.
		if data, err := json.Marshal(logLine{u.id(), s.mesh.Instance(), time.Now().UTC(), line}); err == nil {
			_ = b.nc.Publish(log, data)
		}
	}
	return s
}
