package registry

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/events"
	"github.com/extmesh/extmesh/internal/fleet"
)

// loop is the state of a running replica. Only the goroutine of run accesses it; workers pass their results through
// report.
type loop struct {
	workers
	log     *slog.Logger
	sub     *nats.Subscription
	in      chan *nats.Msg // messages of sub
	dropped int            // messages dropped by sub
	more    chan struct{}  // more restoring to do in small steps

	fleet   *fleet.Fleet
	refused refusals
	traffic Traffic
	events  events.Log

	scans     scans
	selfCheck selfCheck
	view      view
	bucket    *bucket
	pub       publisher
	election  election
}

// election is this replica's part in leader elections.
type election struct {
	epoch     uint64        // revision of the epoch key while this replica holds the lease, else 0
	ready     bool          // the view contains the epoch, so all writes of earlier leaders
	trouble   string        // with JetStream; "" if there is none
	leaseFree chan struct{} // to the elector: check the lease now
	stepDown  chan struct{} // to the elector: this replica is fenced
	tookOver  chan struct{} // to the elector: this replica leads
}

// inbox is the size of the channel between the subscription and the loop, in addition to Config.maxQueued.
const inbox = 16

func newLoop(r *Registry) (*loop, error) {
	js, err := jetstream.New(r.nc)
	if err != nil {
		return nil, fmt.Errorf("creating the JetStream context: %w", err)
	}
	l := &loop{
		workers: newWorkers(r), log: r.cfg.Logger, in: make(chan *nats.Msg, inbox), more: make(chan struct{}, 1), selfCheck: newSelfCheck(r),
		bucket:   &bucket{nc: r.nc, js: js, prefix: r.cfg.Prefix},
		pub:      newPublisher(),
		election: election{leaseFree: make(chan struct{}, 1), stepDown: make(chan struct{}, 1), tookOver: make(chan struct{}, 1)},
	}
	l.scans = scans{workers: &l.workers, bucket: l.bucket, view: &l.view}
	l.fleet = fleet.New(fleet.Config{Prefix: r.cfg.Prefix, Heartbeat: r.cfg.Heartbeat, Room: r.cfg.maxKept()}, &l.view)
	return l, nil
}

// run is the loop. When ctx is done it stops reading reports and waits for the workers. It returns an error if the
// connection was closed.
func (l *loop) run(ctx context.Context, status <-chan nats.Status) error {
	defer l.wg.Wait()
	defer close(l.stopped)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.ctx = ctx
	elector := newElector(l)
	l.wg.Go(func() { elector.run(ctx) }) // ends with ctx, after it has released the lease
	l.fleet.RequestAll(false, time.Now())
	l.selfCheck.send(time.Now())
	tick := time.NewTicker(selfCheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-l.in:
			l.receive(m)
			for n := len(l.in); n > 0; n-- { // everything received by now goes into one flush
				l.receive(<-l.in)
			}
		case f := <-l.reports:
			f(l)
		case f := <-l.calls:
			f(l)
		case s := <-status:
			if s == nats.CLOSED {
				return nats.ErrConnectionClosed
			}
			l.connection(s)
		case <-tick.C:
			l.selfCheck.leading = l.leading()
			l.selfCheck.send(time.Now())
			l.housekeep(time.Now())
		case <-l.pub.timer.C:
			l.pub.fired()
		case <-l.more:
		}
		l.flush()
	}
}

// checkDropped checks whether the client dropped messages because too many were queued.
func (l *loop) checkDropped(now time.Time) {
	dropped, err := l.sub.Dropped()
	if err != nil || dropped <= l.dropped { // without a subscription this replica is being stopped
		return
	}
	l.dropped = dropped
	l.listeningGap("messages were dropped")
	l.fleet.RequestAll(false, now)
}

// receive handles one message of P.registry.>.
func (l *loop) receive(m *nats.Msg) {
	verb, rest, _ := strings.Cut(strings.TrimPrefix(m.Subject, string(l.cfg.Prefix)+".registry."), ".")
	now := time.Now()
	if verb == "catalog" {
		l.catalogEvent(rest, m, now)
		return
	}
	if err := checkControl(m); err != nil {
		if refusedAs, ok := controlVerbs[verb]; ok {
			l.refuse(refusedAs, rest, err)
		}
		return
	}
	if verb == "heartbeat" && rest == registryID {
		l.replicaHeartbeat(m.Data, now)
		return
	}
	l.fleet.Control(verb, rest, m.Data, now)
}

// replicaHeartbeat handles a heartbeat of a registry replica. This replica's own one makes it evaluate missing heartbeats.
func (l *loop) replicaHeartbeat(data []byte, now time.Time) {
	sent, err := l.selfCheck.receive(data, now)
	l.takeOver()
	switch {
	case err != nil:
		l.refuse("beat", registryID, err)
	case !sent.IsZero():
		// With JetStream trouble, this side of a network partition may be the wrong one; the fleet waits for a grace
		// period afterwards.
		l.fleet.Verified(sent, l.election.trouble == "", now)
	}
}

// housekeep does periodic work. It is called with every self-check.
func (l *loop) housekeep(now time.Time) {
	l.refused.logged = 0
	l.checkDropped(now)
	l.fleet.Tick(now)
	if l.selfCheck.ticks%verifyTicks == 0 {
		l.scans.verify()
	}
}

// connection handles a change of the connection's status. Messages sent while it was down were missed.
func (l *loop) connection(s nats.Status) {
	l.listeningGap("connection " + strings.ToLower(s.String()))
	if s == nats.CONNECTED {
		l.scans.resync()
		l.fleet.RequestAll(true, time.Now())
	}
}

func (l *loop) listeningGap(why string) {
	now := time.Now()
	l.log.Info("heartbeat gap: not marking instances lost for one grace period", "reason", why)
	l.fleet.ListeningGap(now)
}
