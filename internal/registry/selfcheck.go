package registry

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// registryID is the id in the heartbeats of replicas. It is reserved, so no extension has it.
const registryID = "registry"

// The roles of replicas, which precede the name in a heartbeat's reason.
const (
	roleLeader  = "leader"
	roleStandby = "standby"
	maxPeers    = 64
)

const (
	selfCheckInterval = 500 * time.Millisecond
	maxSelfCheckAge   = time.Second // a self-check received later than this proves nothing: it was buffered on the way
)

// selfCheck verifies that this replica receives messages. The replica publishes a heartbeat of its own, which passes
// through the server and the same subscription as all others and queues after them. Missing heartbeats are evaluated
// only up to the time at which the latest received self-check was sent: every heartbeat that arrived before has been
// processed by then, and the connection worked. Without a self-check (a stopped process, a half-open connection, a
// loop that lags) nothing is evaluated; liveness.Monitor then sees the gap and waits for a full grace period first.
type selfCheck struct {
	*Registry
	peers    *liveness.Monitor // of the replicas
	leading  bool              // what the heartbeats say
	received bool              // one of them has come back, so this replica receives messages
	seq      uint64
	ticks    uint64 // number of them sent by the clock
	sent     map[uint64]time.Time
	waiting  []waiter // callbacks waiting for a self-check with their number or a later one; in order
}

func newSelfCheck(r *Registry) selfCheck {
	return selfCheck{Registry: r, peers: liveness.NewMonitor(liveness.Config{Max: maxPeers, MaxPerID: maxPeers}), sent: map[uint64]time.Time{}}
}

// waiter is a callback that waits for a self-check.
type waiter struct {
	seq uint64
	do  func(now time.Time)
}

// afterPending calls do after everything that had been sent to this replica by now has been processed. A reply can
// arrive before heartbeats that are still queued. Such a heartbeat may come from a process that has since exited and
// must not mark it ready.
func (p *selfCheck) afterPending(do func(now time.Time)) {
	p.publish(time.Now()) // if publishing fails, the next self-check also queues after everything pending
	p.waiting = append(p.waiting, waiter{p.seq, do})
}

// send sends a self-check by the clock.
func (p *selfCheck) send(now time.Time) {
	for seq, at := range p.sent {
		if now.Sub(at) > maxSelfCheckAge {
			delete(p.sent, seq)
		}
	}
	p.ticks++
	p.publish(now)
	p.sent[p.seq] = now
}

func (p *selfCheck) publish(now time.Time) {
	p.seq++
	role := roleStandby
	if p.leading {
		role = roleLeader
	}
	data, err := json.Marshal(heartbeat.Message{ID: registryID, Instance: p.instance, Version: p.cfg.Version,
		Seq: p.seq, TS: now, IntervalMS: 1000, State: heartbeat.Ready, Reason: role + " " + p.cfg.Name})
	if err == nil {
		err = p.nc.Publish(p.cfg.Prefix.Heartbeat(registryID), data)
	}
	if err != nil {
		p.cfg.Logger.Debug("cannot publish a self-check", "error", err)
	}
}

// receive processes a heartbeat of a registry replica. If it is a recent self-check of this one, it returns when that was
// sent.
func (p *selfCheck) receive(data []byte, now time.Time) (sent time.Time, err error) {
	b, err := heartbeat.Parse(data)
	if err == nil && b.ID != registryID {
		err = fmt.Errorf("id %.80q does not match the subject's id %.80q", b.ID, registryID)
	}
	if err != nil {
		return time.Time{}, err
	}
	p.peers.Observe(b, now)
	if b.Instance != p.instance {
		return time.Time{}, nil
	}
	p.received = true
	for len(p.waiting) > 0 && p.waiting[0].seq <= b.Seq {
		do := p.waiting[0].do
		p.waiting = p.waiting[1:]
		do(now)
	}
	at, ok := p.sent[b.Seq]
	if !ok || now.Sub(at) > maxSelfCheckAge {
		return time.Time{}, nil
	}
	delete(p.sent, b.Seq)
	p.peers.Expire(at)
	return at, nil
}
