package registry

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// registryID is the id under which replicas beat. It is reserved, so no extension has it.
const registryID = "registry"

// The roles that replicas beat as, in front of their name in the beat's reason.
const (
	roleLeader  = "leader"
	roleStandby = "standby"
	maxPeers    = 64
)

const (
	pulseInterval = 500 * time.Millisecond
	pulseLate     = time.Second // a pulse heard later than this proves nothing: it was buffered somewhere
)

// pulse is how a replica knows that it hears. It publishes a beat of its own, which travels to the server and
// back through the same subscription as everybody else's and queues behind them. Silence is judged only up to
// the moment at which a pulse was sent that has come back: by then every beat that had arrived before has been
// taken in, and the connection was alive. A process that was stopped, a connection that is half open and a loop
// that lags all come to the same: no pulse, no judgement, and then (heartbeat.Monitor sees the gap) a full grace
// of listening first.
type pulse struct {
	seq     uint64
	ticks   uint64 // of seq, those that came with the clock
	sent    map[uint64]time.Time
	heard   time.Time // when one last came back
	waiting []waiter  // for one of their own, or a later one, to come back; in order
}

// waiter is what is to be done behind a pulse.
type waiter struct {
	seq uint64
	do  func(now time.Time)
}

// behind has do called when everything that had been sent to this replica by now has been taken in. The answer to a
// request overtakes the beats that wait: of one who has died since, those would tell that he lives.
func (l *loop) behind(do func(now time.Time)) {
	l.publishPulse(time.Now()) // should it not get away, the next one is heard behind everything, too
	l.pulse.waiting = append(l.pulse.waiting, waiter{l.pulse.seq, do})
}

// arrived does what waited for a pulse.
func (p *pulse) arrived(seq uint64, now time.Time) {
	for len(p.waiting) > 0 && p.waiting[0].seq <= seq {
		do := p.waiting[0].do
		p.waiting = p.waiting[1:]
		do(now)
	}
	if len(p.waiting) == 0 {
		p.waiting = nil
	}
}

// fresh reports whether this replica has heard itself just now, so that an answer that it missed was not sent.
func (p *pulse) fresh(now time.Time) bool { return now.Sub(p.heard) < pulseLate+pulseInterval }

func (l *loop) sendPulse() {
	now := time.Now()
	p := &l.pulse
	if p.sent == nil {
		p.sent = map[uint64]time.Time{}
	}
	for seq, at := range p.sent {
		if now.Sub(at) > pulseLate {
			delete(p.sent, seq)
		}
	}
	p.ticks++
	l.publishPulse(now)
	p.sent[p.seq] = now
}

func (l *loop) publishPulse(now time.Time) {
	p := &l.pulse
	p.seq++
	role := roleStandby
	if l.leading() {
		role = roleLeader
	}
	data, err := json.Marshal(heartbeat.Beat{ID: registryID, Instance: l.instance, Version: l.cfg.Version,
		Seq: p.seq, TS: now, IntervalMS: 1000, State: heartbeat.Ready, Reason: role + " " + l.cfg.Name})
	if err == nil {
		err = l.nc.Publish(l.cfg.Prefix.Heartbeat(registryID), data)
	}
	if err != nil {
		l.log.Debug("cannot send a pulse", "error", err)
	}
}

// heardPulse takes in a replica's beat. Its own lets the loop judge.
func (l *loop) heardPulse(data []byte, now time.Time) {
	b, err := heartbeat.ParseBeat(data)
	if err == nil && b.ID != registryID {
		err = fmt.Errorf("its id %.80q is not that of the subject", b.ID)
	}
	if err != nil {
		l.refuse("beat", registryID, err)
		return
	}
	l.peers.Observe(b, now)
	if b.Instance != l.instance {
		return
	}
	l.pulse.arrived(b.Seq, now)
	at, ok := l.pulse.sent[b.Seq]
	if !ok || now.Sub(at) > pulseLate {
		return
	}
	delete(l.pulse.sent, b.Seq)
	l.pulse.heard = now
	l.peers.Expire(at)
	if l.election.trouble != "" {
		return // perhaps on the wrong side of a partition; the gap makes the Monitor listen anew afterwards
	}
	for _, c := range l.mon.Expire(at) {
		l.changed(c)
	}
}
