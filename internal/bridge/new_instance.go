package bridge

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/supervise"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/nats-io/nats.go"
)

// newInstance creates a replica of w; the first is replica 0.
func (b *Bridge) newInstance(w *workload, replica int) *instance {
	a := w.announce
	if w.replicas > 1 {
		a.Replica = replica + 1
	}
	s := &instance{
		workload: w,
		agent:    b.planner.agentVersion(),
		state:    func() error { return b.planner.makeStateDir(w.id()) },
		mesh:     b.node.Join(a),
		memory:   b.memory,
		updates:  &subscriptions{workload: w, began: time.Now()},
		turns:    b.turns,
		log:      b.log.With("extension", w.id()),
		output:   output{lines: &ring{}, noise: newNoiseLimits(), eventLimit: newEventLimit()},
	}
	if w.replicas > 1 {
		s.log = s.log.With("replica", a.Replica)
	}
	kind := manifest.Stdio
	if w.transport.Type == manifest.HTTP {
		kind = manifest.HTTP
	}
	s.breaker = breaker.New("ext:"+string(kind)+":"+w.id(), breaker.Settings{OnChange: s.breakerChanged})
	ref := wire.InstanceRef{ID: w.id(), Instance: s.mesh.Instance()}
	s.changed = func() { b.inventory.change(ref) }
	s.mesh.OnChange(s.changed)
	counts := b.calls.Extension(w.id())
	s.keepTools = counts.KeepTools
	s.mesh.Log(counts)
	b.inventory.add(ref, s.entry)
	s.forget = func() { b.inventory.remove(ref) }
	s.sup = supervise.New(supervise.Options{Policy: w.policy, Run: s.runOnce, Notify: s.runEnded, Permanent: isPermanent})
	events, log := wire.Prefix(cmp.Or(w.announce.SubjectPrefix, string(b.cfg.Prefix))).Event(w.id()), b.cfg.Prefix.Log(w.id())
	s.publishEvent = func(n []byte) error {
		if isBehind(b.nc) {
			return nats.ErrReconnectBufExceeded
		}
		return b.nc.Publish(events, n)
	}
	s.updates.publish = s.publishEvent
	s.publishLine = func(l logLine) {
		// A line that cannot be published is still in the ring and in the bridge's log.
		if data, err := json.Marshal(l); err == nil && !isBehind(b.nc) {
			_ = b.nc.Publish(log, data)
		}
	}
	return s
}

// maxWaiting is how many bytes for NATS may wait for a reconnect when events and log lines are added. The rest of nats.go's 8 MiB
// is for answers.
const maxWaiting = 1 << 20

// isBehind reports whether NATS is away and so much waits for it that events and log lines are dropped.
func isBehind(nc *nats.Conn) bool {
	if nc.IsConnected() {
		return false
	}
	n, err := nc.Buffered()
	return err == nil && n > maxWaiting
}
