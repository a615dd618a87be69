package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// How a reported instance is probed.
const (
	probeTries    = 3
	probeTimeout  = time.Second
	probeRetry    = 50 * time.Millisecond  // after no responders: three attempts within 100 ms
	probeNote     = 100 * time.Millisecond // unanswered for that long, the catalog shows it
	probeInterval = 500 * time.Millisecond // minimum interval after an answer
	maxProbes     = 64
	maxProbing    = 100_000
	holdRetry     = 2 * time.Second // doubling to holdRetryMax
	holdRetryMax  = time.Minute
)

// notAnswering is the reason shown for an instance that does not answer pings.
const notAnswering = "not answering"

// errNotSent means that a request did not reach the server, so the instance's state is still unknown.
var errNotSent = errors.New("the ping was not sent")

// probe is the state of the probes of one instance.
type probe struct {
	id, instance string
	running      bool
	notBefore    time.Time // do not ping before
	held         bool      // marked lost by a probe: only an answer makes it ready again
	next         time.Time // if held: next ping in the absence of heartbeats
	pause        time.Duration
}

// suspect handles the report of a caller that got no responders or a timeout. A report causes only a ping, so a false
// one does no harm.
func (l *loop) suspect(id string, data []byte, now time.Time) {
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
		l.refuse("suspect", id, err)
		return
	}
	l.suspected(id, s.Instance, now)
}

// suspected probes one instance, or all ready ones if instance is "".
func (l *loop) suspected(id, instance string, now time.Time) {
	x := l.exts[id]
	health, ok := l.mon.Extension(id)
	if x == nil || !ok || !l.leading() {
		return
	}
	for _, i := range health.Instances {
		if i.State == heartbeat.Ready && (instance == "" || instance == i.Instance) {
			l.probe(x, i.Instance, now)
		}
	}
}

// probe pings an instance, unless a ping is running or was just answered.
func (l *loop) probe(x *extension, instance string, now time.Time) {
	a := x.address(instance)
	if a == nil {
		return
	}
	key := instanceKey{x.id, instance}
	p := l.probes[key]
	if p == nil {
		if len(l.probes) >= maxProbing {
			return
		}
		p = &probe{id: x.id, instance: instance}
		l.probes[key] = p
	}
	if p.running || now.Before(p.notBefore) {
		return
	}
	p.running = true
	subject, own := a.rpcSubject(), a.Instance == instance && instance != "" && a.has(wire.FeatureInstance)
	tries := probeTries
	if p.held {
		tries = 1
	}
	l.probing.start(func() {
		asking, answered := context.WithCancel(l.ctx)
		l.wg.Go(func() { // owned by the loop; ends with the answer
			if sleep(asking, probeNote) {
				l.report(func(l *loop) { l.showNoAnswer(p, own) })
			}
		})
		l.wg.Go(func() { // owned by the loop; ends after tries × probeTimeout
			reason, err := ping(l.ctx, l.nc, subject, tries)
			answered()
			l.report(func(l *loop) {
				l.probing.finish()
				l.probed(p, own, reason, err, time.Now())
			})
		})
	})
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

// ping pings a subject. reason is "" if there was an answer; with err the result is unknown.
func ping(ctx context.Context, nc *nats.Conn, subject string, tries int) (reason string, err error) {
	for try := range tries {
		if try > 0 && !sleep(ctx, probeRetry) {
			return "", context.Cause(ctx)
		}
		reason, err = pingOnce(ctx, nc, subject)
		if reason == "" || err != nil {
			return reason, err
		}
	}
	return reason, nil
}

func pingOnce(ctx context.Context, nc *nats.Conn, subject string) (reason string, err error) {
	pinging, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	m, err := natsconn.Request(pinging, nc, subject, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return "no responders", nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return notAnswering, nil
	case err != nil:
		return "", fmt.Errorf("%w: %w", errNotSent, err)
	}
	return reasonOf(m), nil
}

// reasonOf reads the answer to a ping. Any answer counts, even an error, except an error with which a bridge reports
// that the instance is not there.
func reasonOf(m *nats.Msg) string {
	code, err := strconv.Atoi(m.Header.Get("Nats-Service-Error-Code"))
	if err != nil {
		return ""
	}
	switch rpc.Code(code) {
	case rpc.CodeTimeout:
		return notAnswering
	case rpc.CodeExited, rpc.CodeUnavailable, rpc.CodeBreakerOpen:
		return rpc.Code(code).Kind()
	}
	return ""
}

// showNoAnswer shows that an instance has not answered yet. It does nothing if another instance could have answered on
// the same subject.
func (l *loop) showNoAnswer(p *probe, own bool) {
	if !p.running || !own || !l.selfCheck.fresh(time.Now()) {
		return
	}
	if c, ok := l.mon.Note(p.id, p.instance, notAnswering); ok {
		l.changed(c)
		l.markUrgent(p.id)
	}
}

// probed handles the end of a probe.
func (l *loop) probed(p *probe, own bool, reason string, err error, now time.Time) {
	p.running = false
	x := l.exts[p.id]
	key := instanceKey{p.id, p.instance}
	if l.probes[key] != p { // the leader changed meanwhile: another probe now holds the instance
		return
	}
	if x == nil {
		delete(l.probes, key)
		return
	}
	if err != nil || reason == notAnswering && !l.selfCheck.fresh(now) {
		return
	}
	var c liveness.Change
	var ok bool
	switch {
	case reason == "":
		p.notBefore = now.Add(probeInterval)
		if p.held {
			p.held = false
			c, ok = l.mon.Release(p.id, p.instance, now)
		} else {
			c, ok = l.mon.Note(p.id, p.instance, "")
		}
	case !own && l.hasOthers(x, p.instance) && reason != "no responders":
		return // the answer may be missing from any of them
	default:
		if !p.held {
			p.held, p.pause = true, holdRetry
			c, ok = l.mon.Hold(p.id, p.instance, reason, now)
		}
		p.next = now.Add(p.pause)
		p.pause = min(2*p.pause, holdRetryMax)
	}
	if ok {
		l.changed(c)
		l.markUrgent(p.id)
	}
}

// hasOthers reports whether other instances of x answer on the same subject as this one.
func (l *loop) hasOthers(x *extension, instance string) bool {
	health, _ := l.mon.Extension(x.id)
	for _, i := range health.Instances {
		if i.Instance != instance && i.State == heartbeat.Ready {
			return true
		}
	}
	return false
}

// retryHolds pings the instances that a probe marked lost, and removes probes that are no longer needed.
func (l *loop) retryHolds(now time.Time) {
	for key, p := range l.probes {
		i, ok := l.mon.Instance(p.id, p.instance)
		switch {
		case p.running:
		case !ok, !i.Held && now.After(p.notBefore):
			delete(l.probes, key)
		case i.Held && now.After(p.next) && l.exts[p.id] != nil && l.leading():
			l.probe(l.exts[p.id], p.instance, now)
		}
	}
}

// heartbeatOnHold handles the heartbeat of an instance that a probe marked lost: it may be up again.
func (l *loop) heartbeatOnHold(x *extension, instance string, now time.Time) {
	if p := l.probes[instanceKey{x.id, instance}]; p != nil && p.held && l.leading() {
		l.probe(x, instance, now)
	}
}

// dropHolds ends what this replica's probes found. Only the leader probes, and the next leader starts from the
// catalog.
func (l *loop) dropHolds(now time.Time) {
	for _, p := range l.probes {
		l.mon.Release(p.id, p.instance, now)
		l.mon.Note(p.id, p.instance, "")
	}
	clear(l.probes)
}

// holdAsWritten holds an instance that a probe marked lost according to the catalog, even if it sends heartbeats, and
// pings it immediately: heartbeats alone must not make it ready at a new leader.
func (l *loop) holdAsWritten(x *extension, i wire.InstanceState, now time.Time) {
	if i.State != heartbeat.Lost || !probeReason(i.Reason) {
		return
	}
	l.mon.Hold(x.id, i.Instance, i.Reason, now)
	if mine, ok := l.mon.Instance(x.id, i.Instance); ok && mine.Held {
		l.probes[instanceKey{x.id, i.Instance}] = &probe{id: x.id, instance: i.Instance, held: true, pause: holdRetry}
		l.probe(x, i.Instance, now)
	}
}

func probeReason(s string) bool {
	switch s {
	case notAnswering, "no responders", rpc.CodeExited.Kind(), rpc.CodeUnavailable.Kind(), rpc.CodeBreakerOpen.Kind():
		return true
	}
	return false
}

// markUrgent writes an extension's state with the next batch.
func (l *loop) markUrgent(id string) { l.pub.mark(stateKey(id), true) }
