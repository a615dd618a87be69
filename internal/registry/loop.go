package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// loop is the state of a running replica. Only the goroutine of run touches it, except for what report and the
// workers' own arguments carry.
type loop struct {
	*Registry
	ctx context.Context // of the workers; kept here because reports start further work
	log *slog.Logger
	sub *nats.Subscription
	wg  sync.WaitGroup // the workers

	reports chan func(*loop)
	stopped chan struct{} // closed when reports are no longer read

	mon        *heartbeat.Monitor
	exts       map[string]*extension
	names      mesh.Names
	view       view
	bucket     *bucket
	pub        publisher
	pulse      pulse
	handshakes limiter
	election   election
}

// election is this replica's part in the election of a leader.
type election struct {
	epoch     uint64        // the fence's revision while this replica holds the lease, else 0
	ready     bool          // the view contains the epoch: all of an earlier leader's writes are in
	since     time.Time     // of epoch
	freed     chan struct{} // to the elector: look at the lease now
	step      chan struct{} // to the elector: this replica was fenced
	scanning  bool
	scanAgain bool
}

// inbox is how many messages may wait between the subscription and the loop.
const inbox = 1024

func newLoop(r *Registry, sub *nats.Subscription) (*loop, error) {
	js, err := jetstream.New(r.nc)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	l := &loop{
		Registry: r, log: r.cfg.Logger, sub: sub,
		reports: make(chan func(*loop), 64), stopped: make(chan struct{}),
		mon: heartbeat.NewMonitor(r.cfg.Heartbeat), exts: map[string]*extension{},
		view:       view{records: map[string]record{}},
		bucket:     &bucket{nc: r.nc, js: js, prefix: r.cfg.Prefix},
		pub:        newPublisher(),
		handshakes: limiter{max: maxHandshakes},
		election:   election{freed: make(chan struct{}, 1), step: make(chan struct{}, 1)},
	}
	return l, nil
}

// run is the loop. When ctx is done it stops reading reports and waits for the workers.
func (l *loop) run(ctx context.Context, status <-chan nats.Status) error {
	l.ctx = ctx
	in := make(chan *nats.Msg, inbox)
	l.wg.Go(func() { l.read(ctx, in) }) // ends with ctx
	l.wg.Go(func() { l.elector().run(ctx) })
	defer l.wg.Wait()
	defer close(l.stopped)
	if err := l.nc.Publish(l.cfg.Prefix.AnnounceRequest(), nil); err != nil {
		return fmt.Errorf("asking everybody to announce: %w", err)
	}
	l.sendPulse()
	tick := time.NewTicker(pulseInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-in:
			l.receive(m)
			for n := len(in); n > 0; n-- { // what has come by now goes into one flush
				l.receive(<-in)
			}
		case f := <-l.reports:
			f(l)
		case f := <-l.questions:
			f(l)
		case s := <-status:
			l.connection(s)
		case <-tick.C:
			l.sendPulse()
		case <-l.pub.timer.C:
			l.pub.due()
		}
		l.flush()
	}
}

func (l *loop) elector() *elector {
	ttl := l.cfg.LeaseTTL
	if ttl < time.Second {
		ttl = leaseTTL(l.bucket.clustered())
	}
	return &elector{bucket: l.bucket, me: holder{Name: l.cfg.Name, Instance: l.instance}, replicas: l.cfg.Replicas,
		ttl: ttl, log: l.log, freed: l.election.freed, step: l.election.step, report: l.report}
}

// report hands what a worker found to the loop; after the loop has ended nobody cares.
func (l *loop) report(f func(*loop)) {
	select {
	case l.reports <- f:
	case <-l.stopped:
	}
}

// read moves messages from the subscription to the loop until ctx is done. It is a goroutine of its own only
// because a subscription that bounds what waits by bytes cannot be selected on.
func (l *loop) read(ctx context.Context, in chan<- *nats.Msg) {
	for {
		m, err := l.sub.NextMsgWithContext(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, nats.ErrSlowConsumer):
			l.report(func(l *loop) { l.deafened("messages were dropped") })
			continue
		case err != nil:
			l.log.Error("cannot hear the mesh any more", "err", err)
			return
		}
		select {
		case in <- m:
		case <-ctx.Done():
			return
		}
	}
}

// receive takes in one message of P.registry.>.
func (l *loop) receive(m *nats.Msg) {
	verb, rest, _ := strings.Cut(strings.TrimPrefix(m.Subject, string(l.cfg.Prefix)+".registry."), ".")
	now := time.Now()
	switch verb {
	case "heartbeat":
		l.beat(rest, m.Data, now)
	case "announce":
		l.announce(rest, m.Data, now)
	case "shutdown":
		l.goodbye(rest, m.Data, now)
	case "catalog":
		l.catalogEvent(rest, m)
	}
}

func (l *loop) beat(id string, data []byte, now time.Time) {
	if id == registryID {
		l.heardPulse(data, now)
		return
	}
	b, err := heartbeat.ParseBeat(data)
	if err == nil && b.ID != id {
		err = fmt.Errorf("its id %.80q is not that of the subject", b.ID)
	}
	if err == nil {
		err = checkBeatID(id)
	}
	if err != nil {
		l.refuse("beat", id, err)
		return
	}
	c, changed := l.mon.Observe(b, now)
	if changed {
		l.changed(c)
	}
	if x := l.exts[id]; x != nil {
		l.considerHandshake(x, b.Instance)
	}
}

func checkBeatID(id string) error {
	if strings.Contains(id, ".") {
		parent, _, _ := strings.Cut(id, ".")
		return checkID(id, parent)
	}
	return checkID(id, "")
}

func (l *loop) announce(id string, data []byte, now time.Time) {
	a, err := parseAnnounce(id, data, l.cfg.Prefix)
	if err != nil {
		l.refuse("announce", id, err)
		return
	}
	if _, fresh := l.mon.Declare(id, now); fresh {
		l.pub.mark(stateKey(id), false)
	}
	x := l.exts[id]
	if x == nil {
		x = newExtension(id)
		l.exts[x.id] = x
	}
	x.legacy = false
	x.said[a.Instance] = &announced{Announce: a, at: now}
	x.prune()
	l.pub.mark(stateKey(x.id), false) // host and bridge are from the announce
	l.considerHandshake(x, a.Instance)
	l.reconsider(x, false)
}

func (l *loop) goodbye(id string, data []byte, now time.Time) {
	var g mesh.Goodbye
	err := json.Unmarshal(data, &g)
	if err == nil && g.ID != id {
		err = fmt.Errorf("its id %.80q is not that of the subject", g.ID)
	}
	if err != nil {
		l.refuse("shutdown", id, err)
		return
	}
	var c heartbeat.Change
	var ok bool
	switch {
	case g.Reason == mesh.GoodbyeRemoved && g.Instance == "":
		c, ok = l.mon.Forget(id)
	case g.Reason == mesh.GoodbyeRemoved:
		if c, ok = l.mon.Remove(id, g.Instance, now); ok {
			if how, known := l.mon.Extension(id); known && len(how.Instances) == 0 {
				l.changed(c)
				c, ok = l.mon.Forget(id)
			}
		}
	default:
		c, ok = l.mon.Goodbye(id, g.Instance, g.Reason, now)
	}
	if ok {
		l.changed(c)
	}
}

// changed takes in a change of how an extension is.
func (l *loop) changed(c heartbeat.Change) {
	x := l.exts[c.ID]
	switch c.Kind {
	case heartbeat.WentLost:
		l.logLost(c, x)
	case heartbeat.CameBack:
		l.log.Info("extension back", "id", c.ID, "instance", c.Instance)
	case heartbeat.Dropped:
		if x != nil {
			delete(x.said, c.Instance)
			x.prune()
		}
	case heartbeat.Forgotten:
		l.log.Info("extension forgotten", "id", c.ID, "reason", c.Reason)
		l.forgotten(c.ID)
		return
	}
	l.pub.mark(stateKey(c.ID), c.Best == heartbeat.Ready && c.From != c.To)
	if x != nil {
		l.reconsider(x, false)
	}
}

func (l *loop) logLost(c heartbeat.Change, x *extension) {
	host := ""
	if x != nil && x.said[c.Instance] != nil {
		host = x.said[c.Instance].Host
	}
	l.log.Warn("extension lost", "id", c.ID, "instance", c.Instance, "host", host,
		"silence_ms", c.Silence.Milliseconds(), "reason", c.Reason)
}

func (l *loop) forgotten(id string) {
	delete(l.exts, id)
	l.pub.mark(specKey(id), false)
	l.pub.mark(stateKey(id), false)
	for _, other := range l.names.Set(id, nil) {
		l.pub.mark(specKey(other), false)
	}
}

// reconsider chooses anew what an extension's spec is made of, and gives its tools their names.
func (l *loop) reconsider(x *extension, urgent bool) {
	how, _ := l.mon.Extension(x.id)
	if x.choose(how) || urgent {
		var tools []string
		if x.tools != nil {
			for _, t := range x.tools.tools {
				tools = append(tools, t.Own)
			}
		}
		for _, id := range l.names.Set(x.id, tools) {
			l.pub.mark(specKey(id), true)
		}
		urgent = true
	}
	l.pub.mark(specKey(x.id), urgent)
}

// connection takes in a change of the connection: what was said while it was away was not heard.
func (l *loop) connection(s nats.Status) {
	l.deafened("connection " + strings.ToLower(s.String()))
	if s == nats.CONNECTED {
		l.view.lose()
		l.snapshot()
		if err := l.nc.Publish(l.cfg.Prefix.AnnounceRequest(), nil); err != nil {
			l.log.Warn("cannot ask everybody to announce", "err", err)
		}
	}
}

func (l *loop) deafened(why string) {
	now := time.Now()
	l.log.Info("condemning nobody before a full grace of listening", "reason", why)
	l.mon.Deaf(now.Add(-1), now)
}

func (l *loop) refuse(what, id string, err error) {
	l.log.Warn("refused", "what", what, "id", id, "err", err)
}
