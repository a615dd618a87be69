package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// How a reported instance is probed.
const (
	probeTries    = 3
	probeInterval = 500 * time.Millisecond // minimum interval after an answer
	maxProbing    = 100_000
	holdRetry     = 2 * time.Second // doubling to holdRetryMax
	holdRetryMax  = time.Minute
)

// NotAnswering is the reason shown for an instance that does not answer pings.
const NotAnswering = wire.NotAnswering

// probes checks the instances that may not answer.
type probes struct {
	*core
	*modules
	byInstance map[instanceKey]*probe
}

// probe is the state of the probes of one instance.
type probe struct {
	id, instance string
	running      bool
	inherited    bool      // only the absence of responders is evidence
	notBefore    time.Time // do not ping before
	held         bool      // marked lost by a probe: only an answer makes it ready again
	next         time.Time // if held: next ping in the absence of heartbeats
	pause        time.Duration
}

// suspect handles the report of a caller that got no responders or a timeout. A report causes only a ping, so a false
// one does no harm.
func (ps *probes) suspect(id string, data []byte, now time.Time) {
	var s struct {
		ID       string `json:"id"`
		Instance string `json:"instance"`
		Reason   string `json:"reason"`
	}
	var err error
	if len(data) > 0 {
		err = json.Unmarshal(data, &s)
	}
	if err == nil && s.ID != "" && s.ID != id {
		err = fmt.Errorf("id %.80q does not match the subject's id %.80q", s.ID, id)
	}
	if err != nil {
		ps.refuse("suspect", id, err)
		return
	}
	ps.suspected(id, s.Instance, now)
}

// suspected probes one instance, or all ready ones if instance is "".
func (ps *probes) suspected(id, instance string, now time.Time) {
	x := ps.exts[id]
	health, ok := ps.mon.Extension(id)
	if x == nil || !ok || !ps.leads {
		return
	}
	for _, i := range health.Instances {
		if i.State == heartbeat.Ready && (instance == "" || instance == i.Instance) {
			ps.probe(x, i.Instance, now)
		}
	}
}

// inherit probes the instances that are ready in the catalog, or in this replica's memory: one may have ended while there was
// no leader. One that is busy with a call has not.
func (ps *probes) inherit(x *extension, now time.Time) {
	if ps.mayReturn() {
		return
	}
	health, _ := ps.mon.Extension(x.id)
	for _, i := range health.Instances {
		key := instanceKey{x.id, i.Instance}
		if p := ps.byInstance[key]; i.State != heartbeat.Ready || p != nil && p.running {
			continue
		}
		ps.probe(x, i.Instance, now)
		if p := ps.byInstance[key]; p != nil {
			p.inherited = p.running
		}
	}
}

// probe pings an instance, unless a ping is running or was just answered.
func (ps *probes) probe(x *extension, instance string, now time.Time) {
	a := x.address(instance)
	if a == nil {
		return
	}
	key := instanceKey{x.id, instance}
	p := ps.byInstance[key]
	if p == nil {
		if len(ps.byInstance) >= maxProbing {
			return
		}
		p = &probe{id: x.id, instance: instance}
		ps.byInstance[key] = p
	}
	p.inherited = false // a caller has evidence of its own
	if p.running || now.Before(p.notBefore) {
		return
	}
	p.running = true
	subject, own := a.rpcSubject(), a.Instance == instance && instance != "" && slices.Contains(a.Features, wire.FeatureInstance)
	tries := probeTries
	if p.held {
		tries = 1
	}
	ps.emit(Ping{Subject: subject, Tries: tries, own: own, probe: p})
}

// address is the announcement with the subject of an instance: its own, that of a service without instances, or, for
// an instance from the catalog, the one shown.
func (x *extension) address(instance string) *announced {
	switch {
	case x.announcements[instance] != nil:
		return x.announcements[instance]
	case x.announcements[""] != nil:
		return x.announcements[""]
	case x.shown != nil:
		a := *x.shown
		a.Instance = instance
		return &a
	}
	return nil
}

// showNoAnswer shows that an instance has not answered yet. It does nothing if another instance could have answered on
// the same subject.
func (ps *probes) showNoAnswer(p *probe, own bool) {
	if !p.running || p.inherited || !own || !ps.fresh() {
		return
	}
	if c, ok := ps.mon.Note(p.id, p.instance, NotAnswering); ok {
		ps.changed(c)
		ps.markUrgent(p.id)
	}
}

// probed handles the end of a probe.
func (ps *probes) probed(p *probe, own bool, reason string, err error, now time.Time) {
	inherited := p.inherited
	p.running, p.inherited = false, false
	x := ps.exts[p.id]
	key := instanceKey{p.id, p.instance}
	if ps.byInstance[key] != p { // the leader changed meanwhile: another probe now holds the instance
		return
	}
	if x == nil {
		delete(ps.byInstance, key)
		return
	}
	var c liveness.Change
	var ok bool
	switch {
	case err != nil || reason == NotAnswering && (inherited || !ps.fresh()): // not known
		c, ok = ps.mon.Note(p.id, p.instance, "") // nothing else would end what showNoAnswer shows
	case reason == "" && p.held && !own && !ps.isAlive(p): // another instance has answered on the same subject
		p.next = now.Add(p.pause)
		p.pause = min(2*p.pause, holdRetryMax)
	case reason == "":
		p.notBefore = now.Add(probeInterval)
		if p.held {
			p.held = false
			c, ok = ps.mon.Release(p.id, p.instance, now)
		} else {
			c, ok = ps.mon.Note(p.id, p.instance, "")
		}
	case !own && ps.hasOthers(x, p.instance) && reason != "no responders":
		return // the answer may be missing from any of them
	default:
		if !p.held {
			p.held, p.pause = true, holdRetry
			c, ok = ps.mon.Hold(p.id, p.instance, reason, now)
		}
		p.next = now.Add(p.pause)
		p.pause = min(2*p.pause, holdRetryMax)
	}
	if ok {
		ps.changed(c)
		ps.markUrgent(p.id)
	}
}

// isAlive reports whether the instance of a probe has sent a heartbeat since it is held.
func (ps *probes) isAlive(p *probe) bool {
	i, ok := ps.mon.Instance(p.id, p.instance)
	return ok && i.LastHeartbeat.After(i.Since)
}

// hasOthers reports whether other instances of x answer on the same subject as this one.
func (ps *probes) hasOthers(x *extension, instance string) bool {
	health, _ := ps.mon.Extension(x.id)
	for _, i := range health.Instances {
		if i.Instance != instance && i.State == heartbeat.Ready {
			return true
		}
	}
	return false
}

// retryHolds pings the instances that a probe marked lost, and removes probes that are no longer needed.
func (ps *probes) retryHolds(now time.Time) {
	for key, p := range ps.byInstance {
		i, ok := ps.mon.Instance(p.id, p.instance)
		switch {
		case p.running:
		case !ok, !i.Held && now.After(p.notBefore):
			delete(ps.byInstance, key)
		case i.Held && now.After(p.next) && ps.exts[p.id] != nil && ps.leads:
			ps.probe(ps.exts[p.id], p.instance, now)
		}
	}
}

// heartbeatOnHold handles the heartbeat of an instance that a probe marked lost: it may be up again.
func (ps *probes) heartbeatOnHold(x *extension, instance string, now time.Time) {
	if p := ps.byInstance[instanceKey{x.id, instance}]; p != nil && p.held && ps.leads {
		ps.probe(x, instance, now)
	}
}

// dropHolds ends what this replica's probes found. Only the leader probes, and the next leader starts from the
// catalog.
func (ps *probes) dropHolds(now time.Time) {
	for _, p := range ps.byInstance {
		ps.mon.Release(p.id, p.instance, now)
		ps.mon.Note(p.id, p.instance, "")
	}
	clear(ps.byInstance)
}

// holdAsWritten holds an instance that a probe marked lost according to the catalog, even if it sends heartbeats, and
// pings it immediately: heartbeats alone must not make it ready at a new leader.
func (ps *probes) holdAsWritten(x *extension, i wire.InstanceState, now time.Time) {
	if i.State != heartbeat.Lost || !probeReason(i.Reason) {
		return
	}
	ps.mon.Hold(x.id, i.Instance, i.Reason, now)
	if mine, ok := ps.mon.Instance(x.id, i.Instance); ok && mine.Held {
		ps.byInstance[instanceKey{x.id, i.Instance}] = &probe{id: x.id, instance: i.Instance, held: true, pause: holdRetry}
		ps.probe(x, i.Instance, now)
	}
}

func probeReason(s string) bool {
	switch s {
	case NotAnswering, "no responders", rpc.CodeExited.Kind(), rpc.CodeUnavailable.Kind(), rpc.CodeBreakerOpen.Kind():
		return true
	}
	return false
}
