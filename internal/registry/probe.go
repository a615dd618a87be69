package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// How an instance that a caller complains of is probed.
const (
	probeTries   = 3
	probeTimeout = time.Second
	probeAgain   = 50 * time.Millisecond  // after no responders: three times over 100 ms
	probeNote    = 100 * time.Millisecond // unanswered for so long, the catalog says so
	probeRest    = 500 * time.Millisecond // an instance that has just answered is not asked again sooner
	maxProbes    = 64
	maxProbing   = 100_000
	holdRetry    = 2 * time.Second // doubling to holdRetryMax
	holdRetryMax = time.Minute
)

// notAnswering is the reason shown for an instance that does not answer its pings.
const notAnswering = "not answering"

// errNotAsked is a request that did not reach the server, which says nothing of whom it was meant for.
var errNotAsked = errors.New("not asked")

// probe is what is known of one instance that was, or is, suspected.
type probe struct {
	id, instance string
	running      bool
	rest         time.Time // do not ask before
	held         bool      // lost by a probe: only an answer brings it back
	next         time.Time // of held: when to ask again, though it does not beat
	pause        time.Duration
}

type probeKey struct{ id, instance string }

// suspect takes in a caller's complaint: it met no responders, or a time-out. Complaints cost whoever is
// complained of nothing but a ping, so that one that lies can harm nobody.
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
		err = fmt.Errorf("its id %.80q is not that of the subject", s.ID)
	}
	if err != nil {
		l.refuse("suspect", id, err)
		return
	}
	l.suspected(id, s.Instance, now)
}

// suspected probes one instance, or with "" all that are called ready.
func (l *loop) suspected(id, instance string, now time.Time) {
	x := l.exts[id]
	how, ok := l.mon.Extension(id)
	if x == nil || !ok || !l.leading() {
		return
	}
	for _, i := range how.Instances {
		if i.State == heartbeat.Ready && (instance == "" || instance == i.Instance) {
			l.probe(x, i.Instance, now)
		}
	}
}

// probe asks an instance whether it is there, unless it is being asked or has just answered.
func (l *loop) probe(x *extension, instance string, now time.Time) {
	a := x.address(instance)
	if a == nil {
		return
	}
	key := probeKey{x.id, instance}
	p := l.probes[key]
	if p == nil {
		if len(l.probes) >= maxProbing {
			return
		}
		p = &probe{id: x.id, instance: instance}
		l.probes[key] = p
	}
	if p.running || now.Before(p.rest) {
		return
	}
	p.running = true
	subject, own := a.rpcSubject(), a.Instance == instance && instance != "" && a.has(mesh.FeatureInstance)
	tries := probeTries
	if p.held {
		tries = 1
	}
	l.probing.start(func() {
		asking, answered := context.WithCancel(l.ctx)
		l.wg.Go(func() { // ends with the answer
			if sleep(asking, probeNote) {
				l.report(func(l *loop) { l.noteSilence(p, own) })
			}
		})
		l.wg.Go(func() { // owned by the loop; ends after tries × probeTimeout
			reason, err := ask(l.ctx, l.nc, subject, tries)
			answered()
			l.report(func(l *loop) {
				l.probing.finish()
				l.probed(p, own, reason, err, time.Now())
			})
		})
	})
}

// address is the announce that says where an instance is asked: its own, that of a service which names none, or, of
// an instance known from the catalog alone, the one shown.
func (x *extension) address(instance string) *announced {
	switch {
	case x.said[instance] != nil:
		return x.said[instance]
	case x.said[""] != nil:
		return x.said[""]
	case x.shown != nil:
		a := *x.shown
		a.Instance = instance
		return &a
	}
	return nil
}

// ask pings a subject. reason is "" if anybody answered; err is a failure that says nothing.
func ask(ctx context.Context, nc *nats.Conn, subject string, tries int) (reason string, err error) {
	for try := range tries {
		if try > 0 && !sleep(ctx, probeAgain) {
			return "", context.Cause(ctx)
		}
		reason, err = askOnce(ctx, nc, subject)
		if reason == "" || err != nil {
			return reason, err
		}
	}
	return reason, nil
}

func askOnce(ctx context.Context, nc *nats.Conn, subject string) (reason string, err error) {
	asked, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	m, err := natsconn.Request(asked, nc, subject, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return "no responders", nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return notAnswering, nil
	case err != nil:
		return "", fmt.Errorf("%w: %w", errNotAsked, err)
	}
	return reasonOf(m), nil
}

// reasonOf reads a ping's answer. Any will do, an error too, except one in which the mesh says for the extension
// that it is not there.
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

// noteSilence shows that an instance takes its time to answer. Where the answer could be another instance's,
// nothing is said of any.
func (l *loop) noteSilence(p *probe, own bool) {
	if !p.running || !own || !l.pulse.fresh(time.Now()) {
		return
	}
	if c, ok := l.mon.Note(p.id, p.instance, notAnswering); ok {
		l.changed(c)
		l.urge(p.id)
	}
}

// probed takes in the end of a probe.
func (l *loop) probed(p *probe, own bool, reason string, err error, now time.Time) {
	p.running = false
	x := l.exts[p.id]
	key := probeKey{p.id, p.instance}
	if l.probes[key] != p { // deposed meanwhile, and perhaps leader again: the instance is another probe's to release
		return
	}
	if x == nil {
		delete(l.probes, key)
		return
	}
	if err != nil || reason == notAnswering && !l.pulse.fresh(now) {
		return
	}
	var c heartbeat.Change
	var ok bool
	switch {
	case reason == "":
		p.rest = now.Add(probeRest)
		if p.held {
			p.held = false
			c, ok = l.mon.Release(p.id, p.instance, now)
		} else {
			c, ok = l.mon.Note(p.id, p.instance, "")
		}
		l.answered(x)
	case !own && l.others(x, p.instance) && reason != "no responders":
		return // it may be any of them
	default:
		if !p.held {
			p.held, p.pause = true, holdRetry
			c, ok = l.mon.Hold(p.id, p.instance, reason, now)
		}
		p.next = now.Add(p.pause)
		p.pause = min(2*p.pause, holdRetryMax)
		l.unanswered(x, now)
	}
	if ok {
		l.changed(c)
		l.urge(p.id)
	}
}

// others reports whether other instances of x answer on the same subject as this one.
func (l *loop) others(x *extension, instance string) bool {
	how, _ := l.mon.Extension(x.id)
	for _, i := range how.Instances {
		if i.Instance != instance && i.State == heartbeat.Ready {
			return true
		}
	}
	return false
}

// retryHolds asks those again that a probe called lost, and forgets probes that have nothing to say any more.
func (l *loop) retryHolds(now time.Time) {
	for key, p := range l.probes {
		i, ok := l.mon.Instance(p.id, p.instance)
		switch {
		case p.running:
		case !ok, !i.Held && now.After(p.rest):
			delete(l.probes, key)
		case i.Held && now.After(p.next) && l.exts[p.id] != nil && l.leading():
			l.probe(l.exts[p.id], p.instance, now)
		}
	}
}

// beatOnHold is called for the beat of an instance that a probe called lost: its owner says it is up.
func (l *loop) beatOnHold(x *extension, instance string, now time.Time) {
	if p := l.probes[probeKey{x.id, instance}]; p != nil && p.held && l.leading() {
		l.probe(x, instance, now)
	}
}

// dropHolds ends what this replica found out by asking: only the leader asks, and the next one goes by what the
// catalog says.
func (l *loop) dropHolds(now time.Time) {
	for _, p := range l.probes {
		l.mon.Release(p.id, p.instance, now)
		l.mon.Note(p.id, p.instance, "")
	}
	clear(l.probes)
	for _, x := range l.exts {
		x.breaker.retryAt, x.breaker.pause = time.Time{}, 0
	}
}

// holdAsWritten holds an instance that the catalog calls lost by a probe, whether this replica hears it beat or not,
// and asks it at once: a new leader must not call it ready on its owner's word.
func (l *loop) holdAsWritten(x *extension, i mesh.InstanceState, now time.Time) {
	if i.State != heartbeat.Lost || !probeReason(i.Reason) {
		return
	}
	l.mon.Hold(x.id, i.Instance, i.Reason, now)
	if mine, ok := l.mon.Instance(x.id, i.Instance); ok && mine.Held {
		l.probes[probeKey{x.id, i.Instance}] = &probe{id: x.id, instance: i.Instance, held: true, pause: holdRetry}
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

// urge has an extension's state written at once.
func (l *loop) urge(id string) { l.pub.mark(stateKey(id), true) }
