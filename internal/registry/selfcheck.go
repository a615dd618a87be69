package registry

import (
	"encoding/json"
	"fmt"
	"time"

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
	seq     uint64
	ticks   uint64 // number of them sent by the clock
	sent    map[uint64]time.Time
	waiting []waiter // callbacks waiting for a self-check with their number or a later one; in order
}

// waiter is a callback that waits for a self-check.
type waiter struct {
	seq uint64
	do  func(now time.Time)
}

// afterPending calls do after everything that had been sent to this replica by now has been processed. A reply can
// arrive before heartbeats that are still queued. Such a heartbeat may come from a process that has since exited and
// must not mark it ready.
func (l *loop) afterPending(do func(now time.Time)) {
	l.publishSelfCheck(time.Now()) // if publishing fails, the next self-check also queues after everything pending
	l.selfCheck.waiting = append(l.selfCheck.waiting, waiter{l.selfCheck.seq, do})
}

// runWaiters runs the callbacks that waited for the self-check seq.
func (p *selfCheck) runWaiters(seq uint64, now time.Time) {
	for len(p.waiting) > 0 && p.waiting[0].seq <= seq {
		do := p.waiting[0].do
		p.waiting = p.waiting[1:]
		do(now)
	}
	if len(p.waiting) == 0 {
		p.waiting = nil
	}
}

func (l *loop) sendSelfCheck() {
	now := time.Now()
	p := &l.selfCheck
	if p.sent == nil {
		p.sent = map[uint64]time.Time{}
	}
	for seq, at := range p.sent {
		if now.Sub(at) > maxSelfCheckAge {
			delete(p.sent, seq)
		}
	}
	p.ticks++
	l.publishSelfCheck(now)
	p.sent[p.seq] = now
}

func (l *loop) publishSelfCheck(now time.Time) {
	p := &l.selfCheck
	p.seq++
	role := roleStandby
	if l.leading() {
		role = roleLeader
	}
	data, err := json.Marshal(heartbeat.Message{ID: registryID, Instance: l.instance, Version: l.cfg.Version,
		Seq: p.seq, TS: now, IntervalMS: 1000, State: heartbeat.Ready, Reason: role + " " + l.cfg.Name})
	if err == nil {
		err = l.nc.Publish(l.cfg.Prefix.Heartbeat(registryID), data)
	}
	if err != nil {
		l.log.Debug("cannot publish a self-check", "error", err)
	}
}

// handleReplicaHeartbeat processes a heartbeat of a registry replica. This replica's own one makes the loop evaluate
// missing heartbeats.
func (l *loop) handleReplicaHeartbeat(data []byte, now time.Time) {
	b, err := heartbeat.Parse(data)
	if err == nil && b.ID != registryID {
		err = fmt.Errorf("id %.80q does not match the subject's id %.80q", b.ID, registryID)
	}
	if err != nil {
		l.refuse("beat", registryID, err)
		return
	}
	l.peers.Observe(b, now)
	if b.Instance != l.instance {
		return
	}
	l.selfCheck.runWaiters(b.Seq, now)
	at, ok := l.selfCheck.sent[b.Seq]
	if !ok || now.Sub(at) > maxSelfCheckAge {
		return
	}
	delete(l.selfCheck.sent, b.Seq)
	l.peers.Expire(at)
	// With JetStream trouble, this side of a network partition may be the wrong one; the fleet waits for a grace period
	// afterwards.
	l.fleet.Verified(at, l.election.trouble == "", now)
}
