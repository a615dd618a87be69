package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// NodeOptions are a Node's settings; the zero value works.
type PublisherOptions struct {
	Prefix            wire.Prefix   // default DefaultPrefix
	HeartbeatInterval time.Duration // default DefaultHeartbeatInterval
	Logger            *slog.Logger  // default: discard

	// Reserve, if set, is called with the number of bytes of each request that is taken up, and with a negative number
	// when it has ended. Where it returns false the request is refused with rpc.CodeOverloaded.
	Reserve func(n int64) bool
}

// Node is what all slots of one program share: one connection, one reader for the mesh's requests to
// announce and for cancellations, one sender of their beats. NewNode starts nothing; Run reads and beats, and has to
// run for as long as any Slot is on the mesh.
type Publisher struct {
	nc      *nats.Conn
	opt     PublisherOptions
	in      chan *nats.Msg    // everything Run reads
	beacons *liveness.Senders // of the slots that are on the mesh

	mu      sync.Mutex
	slots   map[string]*Instance // by instance
	retired []*microService      // to be stopped when the connection is back
	calls   cancels
	streams streams

	words    stateWords
	barriers barriers
	asking   *asking

	probing                  atomic.Bool   // Run does, each absentEvery
	probe                    chan struct{} // poked when it is to
	absentAfter, absentEvery time.Duration

	ticking atomic.Bool   // Run does, each streamTick
	wake    chan struct{} // poked when it is to

	farewells []farewell // to be said again; guarded by mu

	announced time.Time // when all slots were; these two are Run's
	asked     bool      // to announce, too soon after that
}

// NewNode makes a Node on nc.
func NewPublisher(nc *nats.Conn, opt PublisherOptions) *Publisher {
	if opt.Prefix == "" {
		opt.Prefix = wire.DefaultPrefix
	}
	if opt.HeartbeatInterval <= 0 {
		opt.HeartbeatInterval = wire.DefaultHeartbeatInterval
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	return &Publisher{
		nc: nc, opt: opt, in: make(chan *nats.Msg, 4096), slots: map[string]*Instance{}, words: stateWords{of: map[string]*stateWord{}},
		asking: newAsking(), wake: make(chan struct{}, 1), probe: make(chan struct{}, 1), absentAfter: absentAfter, absentEvery: absentEvery,
		beacons: liveness.NewSenders(opt.HeartbeatInterval),
	}
}

// Run beats for the slots that are on the mesh, answers requests to announce, and those who ask for micro services,
// until ctx ends; then it returns nil. The error is that of subscribing, or nats.ErrConnectionClosed where the
// connection is closed first: that is for good.
func (n *Publisher) Run(ctx context.Context) error {
	sub, err := n.nc.ChanSubscribe(n.opt.Prefix.AnnounceRequest(), n.in)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	notAll, err := n.listenForAll()
	if err != nil {
		return err
	}
	defer notAll()
	var wg sync.WaitGroup
	defer wg.Wait()
	running, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { _ = n.beacons.Run(running, n.beats()) }) // owned by Run; ends with it, without an error
	wg.Go(func() { n.answerQuestions(running) })            // owned by Run; ends with it
	defer natsconn.TrafficOf(n.nc).OnMove(n.pauseServices)()
	defer n.listenForDenials()()
	defer n.stopRetired()
	defer func() { n.sayAgain(time.Now()) }() // what would be said later
	if len(n.list()) > 0 {                    // who asked before this was listening is not asking again
		n.announceAll()
	}
	if err := n.read(ctx); ctx.Err() == nil {
		return err
	}
	return nil // whoever ended it may close the connection as well
}

// read is the loop of Run. It ticks only while there is something to do at a tick: most of the time a thousand slots
// are idle, and their bridge sleeps.
func (n *Publisher) read(ctx context.Context) error {
	connected := n.nc.StatusChanged(nats.CONNECTED)
	defer n.nc.RemoveStatusListener(connected)
	closed := n.nc.StatusChanged(nats.CLOSED) // apart, or it could be lost among the others
	defer n.nc.RemoveStatusListener(closed)
	tick := time.NewTicker(wire.StreamTick)
	defer tick.Stop()
	probe := time.NewTicker(n.absentEvery)
	defer probe.Stop()
	n.probing.Store(true)
	n.ticking.Store(true)
	if n.nc.IsClosed() { // it may have been before anybody listened
		return nats.ErrConnectionClosed
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-closed:
			return nats.ErrConnectionClosed
		case now := <-tick.C:
			n.tick(now)
			if n.asked {
				n.announceAll()
			}
			n.sayAgain(now.Add(-farewellAgain))
			if n.nc.IsConnected() {
				n.stopRetired()
			}
			n.ticking.Store(false)
			if n.needsTick() { // asked behind the word that it does not tick: who began something meanwhile has it tick, too
				n.ticking.Store(true)
			} else {
				tick.Stop()
			}
		case now := <-probe.C:
			n.probing.Store(false)
			if n.probeCallers(now) { // looked after probing was set to false: a later call has it set to true
				n.probing.Store(true)
			} else {
				probe.Stop()
			}
		case <-n.probe:
			probe.Reset(n.absentEvery)
		case <-n.wake:
			if !n.ticking.Swap(true) {
				tick.Reset(wire.StreamTick)
			}
		case m := <-n.in:
			n.receive(m)
		case <-connected:
			n.stopRetired()
			n.announceAll() // the registries may have missed what was said meanwhile
		}
	}
}

// needsTick reports whether a tick may have something to do.
func (n *Publisher) needsTick() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked || len(n.retired) > 0 || len(n.farewells) > 0 || n.streams.open.Load() > 0
}

// startTick has Run tick. It comes behind what makes needsTick true.
func (n *Publisher) startTick() {
	if n.ticking.Load() {
		return
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *Publisher) announceAll() {
	n.announced, n.asked = time.Now(), false
	for _, s := range n.list() {
		s.announceNow()
	}
}

// announceEvery limits what one small message can cause in a bridge with a thousand instances: requests that arrive in
// between are answered together.
const announceEvery = 250 * time.Millisecond

func (n *Publisher) receive(m *nats.Msg) {
	if m.Subject == n.opt.Prefix.AnnounceRequest() {
		if n.asked = true; time.Since(n.announced) >= announceEvery {
			n.announceAll()
		} else {
			n.startTick()
		}
		return
	}
	if token, ok := ackToken(m.Subject); ok {
		n.acknowledged(m, token)
		return
	}
	if id, ok := strings.CutPrefix(m.Subject, n.stateEvents()); ok {
		n.calledLost(id, m.Data)
		return
	}
	n.calls.receive(m.Data)
}

// stateEvents is the subject of the catalog's changes of states, up to the id.
func (n *Publisher) stateEvents() string { return n.opt.Prefix.CatalogEvents() + ".state." }

// beats returns what publishes beats, one after the other: the text is made in one place, and the connection copies it.
func (n *Publisher) beats() func(heartbeat.Message) error {
	var beat heartbeat.Message // here, or each would be a heap object of its own
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	return func(b heartbeat.Message) error {
		text.Reset()
		beat = b
		if err := encoder.Encode(&beat); err != nil {
			return err
		}
		return n.nc.Publish(n.opt.Prefix.Heartbeat(b.ID), bytes.TrimSuffix(text.Bytes(), []byte("\n")))
	}
}

// stop stops a service, now or as soon as the connection is back. One whose subscriptions are drained without
// a connection would be taken up again by the server with the reconnect, under nobody: nats.go sends them all
// anew, forgets them a moment later, and tells nobody. Calls would go on being given to it, and be lost.
func (n *Publisher) stop(svc *microService) error {
	if n.nc.IsConnected() || n.nc.IsClosed() {
		return svc.stop()
	}
	n.mu.Lock()
	n.retired = append(n.retired, svc)
	n.mu.Unlock()
	n.startTick()
	return nil
}

func (n *Publisher) stopRetired() {
	n.mu.Lock()
	retired := n.retired
	n.retired = nil
	n.mu.Unlock()
	for _, svc := range retired {
		if err := svc.stop(); err != nil {
			n.opt.Logger.Warn("could not stop a service", "service", svc.identity.Name, "error", err)
		}
	}
}

func (n *Publisher) list() []*Instance {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]*Instance, 0, len(n.slots))
	for _, s := range n.slots {
		out = append(out, s)
	}
	return out
}

// Join makes a slot of the extension that a describes. a.Instance is drawn when empty, a.SubjectPrefix
// defaults to the mesh's. The slot is on the mesh from Slot.Enter to Slot.Leave.
func (n *Publisher) Join(a wire.Announce) *Instance {
	a.SchemaVersion = wire.SchemaVersion
	if a.Instance == "" {
		a.Instance = nuid.Next()
	}
	if a.SubjectPrefix == "" {
		a.SubjectPrefix = string(n.opt.Prefix)
	}
	s := &Instance{node: n, id: a.ID, instance: a.Instance, announce: a, born: time.Now()}
	s.machine = instance.New(s.Beat)
	return s
}
