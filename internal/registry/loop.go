package registry

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/liveness"
)

// loop is the state of a running replica. Only the goroutine of run accesses it; workers pass their results through
// report.
type loop struct {
	*Registry
	ctx     context.Context // of the workers; stored because reports start further work
	log     *slog.Logger
	sub     *nats.Subscription
	in      chan *nats.Msg // messages of sub
	dropped int            // messages dropped by sub
	wg      sync.WaitGroup // the workers
	reports chan func(*loop)
	stopped chan struct{} // closed when reports are no longer read
	more    chan struct{} // more restoring to do in small steps

	fleet   *fleet.Fleet
	peers   *liveness.Monitor // of registries
	refused refusals
	traffic Traffic
	workers
	selfCheck selfCheck
	view      view
	bucket    *bucket
	pub       publisher
	election  election
}

// workers limits the concurrent requests to others.
type workers struct{ handshakes, large, pings, probing limiter }

// election is this replica's part in leader elections.
type election struct {
	epoch       uint64        // revision of the epoch key while this replica holds the lease, else 0
	ready       bool          // the view contains the epoch, so all writes of earlier leaders
	since       time.Time     // of epoch
	trouble     string        // with JetStream; "" if there is none
	denied      string        // why reading the bucket is denied; "" if it is not
	leaseFree   chan struct{} // to the elector: check the lease now
	stepDown    chan struct{} // to the elector: this replica is fenced
	reconnected chan struct{} // to the elector: the client has reconnected
	scanning    bool          // a scan is running, or paused before it begins
	scanAgain   bool
	verifying   bool   // the bucket is being compared with the view
	scanNow     func() // ends the pause of the scan; set while scanning
}

// inbox is the size of the channel between the subscription and the loop, in addition to Config.maxQueued.
const inbox = 16

func newLoop(r *Registry) (*loop, error) {
	js, err := jetstream.New(r.nc)
	if err != nil {
		return nil, fmt.Errorf("creating the JetStream context: %w", err)
	}
	l := &loop{
		Registry: r, log: r.cfg.Logger, in: make(chan *nats.Msg, inbox),
		reports: make(chan func(*loop), 64), stopped: make(chan struct{}),
		more:    make(chan struct{}, 1),
		peers:   liveness.NewMonitor(liveness.Config{Max: maxPeers, MaxPerID: maxPeers}),
		workers: workers{limiter{max: maxHandshakes}, limiter{max: maxLargeHandshakes}, limiter{max: maxBridgePing}, limiter{max: maxProbes}},
		view:    view{values: map[string][]byte{}},
		bucket:  &bucket{nc: r.nc, js: js, prefix: r.cfg.Prefix},
		pub:     newPublisher(),
		election: election{leaseFree: make(chan struct{}, 1), stepDown: make(chan struct{}, 1),
			reconnected: make(chan struct{}, 1)},
	}
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
	elector := l.elector()
	l.wg.Go(func() { elector.run(ctx) }) // ends with ctx, after it has released the lease
	l.fleet.RequestAll(false, time.Now())
	l.sendSelfCheck()
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
			l.sendSelfCheck()
			l.housekeep(time.Now())
		case <-l.pub.timer.C:
			l.pub.fired()
		case <-l.more:
		}
		l.flush()
	}
}

// report runs f in the loop, or drops it if the loop has ended.
func (l *loop) report(f func(*loop)) {
	select {
	case l.reports <- f:
	case <-l.stopped:
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
		l.handleReplicaHeartbeat(m.Data, now)
		return
	}
	l.fleet.Control(verb, rest, m.Data, now)
}

// housekeep does periodic work. It is called with every self-check.
func (l *loop) housekeep(now time.Time) {
	l.refused.logged = 0
	l.checkDropped(now)
	l.fleet.Tick(now)
	if l.selfCheck.ticks%verifyTicks == 0 {
		l.verify()
	}
}

// connection handles a change of the connection's status. Messages sent while it was down were missed.
func (l *loop) connection(s nats.Status) {
	l.listeningGap("connection " + strings.ToLower(s.String()))
	if s == nats.CONNECTED {
		if l.election.scanning {
			l.election.scanNow() // it may be permitted after a reconnect
		}
		l.resync()
		select {
		case l.election.reconnected <- struct{}{}:
		default:
		}
		l.fleet.RequestAll(true, time.Now())
	}
}

func (l *loop) listeningGap(why string) {
	now := time.Now()
	l.log.Info("heartbeat gap: not marking instances lost for one grace period", "reason", why)
	l.fleet.ListeningGap(now)
}
