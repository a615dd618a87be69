package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// ErrRemoved, as the cause given to Slot.Leave or of the context given to Slot.Run, says that the slot will not
// return: the registry forgets it instead of showing it as shut down.
var ErrRemoved = errors.New(wire.ReasonRemoved)

// Slot is one slot of an extension on the mesh. Its identity (the instance) survives its lives: what runs
// in the slot may crash and come back, and each ready life is one call of Serve.
type Instance struct {
	node         *Publisher
	id, instance string
	born         time.Time

	telling sync.Mutex // announcements go out in the order in which they came about, and the good-bye last

	mu       sync.Mutex
	announce wire.Announce
	said     string           // the digest of what was announced last
	beacon   *liveness.Sender // nil while the slot is not on the mesh
	breaker  func() *heartbeat.Breaker
	changed  func()

	machine *instance.Machine // the only writer of the slot's state

	inflight atomic.Int64
	calls    atomic.Uint64
	errors   atomic.Uint64
	tally    tally
}

// Run keeps the slot on the mesh until ctx ends: Enter, and then Leave with ctx's cause. Whoever has many slots
// spares a goroutine for each by calling those two.
func (s *Instance) Run(ctx context.Context) error {
	s.Enter()
	<-ctx.Done()
	return s.Leave(context.Cause(ctx))
}

// Enter puts the slot on the mesh, until Leave: it is announced, and beats. It does not wait. The beats are sent by
// Node.Run, and begin with it. Enter does nothing where the slot is on the mesh already.
func (s *Instance) Enter() {
	if s.enter() {
		s.announceNow()
	}
}

func (s *Instance) enter() bool {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	entered := s.beacon == nil
	if entered {
		s.beacon = s.node.beacons.Add(s.beat)
	}
	s.mu.Unlock()
	if !entered {
		return false
	}
	s.node.hearState(s.id)
	s.node.mu.Lock()
	s.node.slots[s.instance] = s
	s.node.mu.Unlock()
	return true
}

// Leave takes the slot off the mesh and says good-bye: for good where cause is ErrRemoved. Nothing is announced after
// that, and no beat sent, until it enters again. It waits for no more than the beat that is just being sent. The error
// is that of a connection which takes no good-bye. Leave does nothing where the slot is not on the mesh.
func (s *Instance) Leave(cause error) error {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	beacon := s.beacon
	s.beacon = nil
	s.mu.Unlock()
	if beacon == nil {
		return nil
	}
	s.node.mu.Lock()
	if s.node.slots[s.instance] == s { // not another one's that was given the same name
		delete(s.node.slots, s.instance)
	}
	s.node.mu.Unlock()
	s.node.unhearState(s.id)
	beacon.Stop() // without s.mu, which the beat that it waits for may want
	return s.goodbye(cause)
}

// ID is the extension's id.
func (s *Instance) ID() string { return s.id }

// Instance is the slot's identity; it survives restarts.
func (s *Instance) Instance() string { return s.instance }

// Apply applies an event to the slot's state machine. If the state changes, the slot sends a heartbeat at once.
func (s *Instance) Apply(e instance.Event) (accepted bool) { return s.machine.Apply(e) }

// Status returns the status of the slot's state machine.
func (s *Instance) Status() instance.Status { return s.machine.Status() }

// State returns the state that the slot reports, and its reason.
func (s *Instance) State() (heartbeat.State, string) { return s.machine.Status().State() }

// SetBreaker sets where beats learn the state of the slot's breaker; call Beat when it changes.
func (s *Instance) SetBreaker(f func() *heartbeat.Breaker) {
	s.mu.Lock()
	s.breaker = f
	s.mu.Unlock()
}

// OnChange has f called after each change of the instance's state, breaker or announcement. It is called before Serve.
func (s *Instance) OnChange(f func()) {
	s.mu.Lock()
	s.changed = f
	s.mu.Unlock()
}

// Beat sends a heartbeat now instead of at the next turn.
func (s *Instance) Beat() {
	s.mu.Lock()
	beacon, changed := s.beacon, s.changed
	s.mu.Unlock()
	beacon.Kick()
	if changed != nil {
		changed()
	}
}

// Update changes what the slot announces (a handshake's hash, say) and announces it if that made a
// difference. The id and the instance stay.
func (s *Instance) Update(change func(*wire.Announce)) {
	s.mu.Lock()
	before, _ := json.Marshal(s.announce)
	a := s.announce
	change(&a)
	a.ID, a.Instance, a.SchemaVersion = s.id, s.instance, wire.SchemaVersion
	s.announce = a
	after, _ := json.Marshal(a)
	s.mu.Unlock()
	if !bytes.Equal(before, after) {
		s.announceNow()
		s.Beat()
	}
}

// Announced is what the slot announces now.
func (s *Instance) Announced() wire.Announce {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.announce
}

// announceNow publishes the announcement and beats right behind it, so that whoever has just learnt of the
// slot also learns how it is. Of a slot that is not on the mesh it says nothing.
func (s *Instance) announceNow() {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	a, beacon := s.announce, s.beacon
	s.mu.Unlock()
	if beacon == nil {
		return
	}
	data, err := json.Marshal(a)
	if err == nil {
		err = s.node.nc.Publish(s.node.opt.Prefix.Announce(a.ID), data)
	}
	if err != nil {
		s.node.opt.Logger.Warn("could not announce", "extension", a.ID, "error", err)
	}
	s.mu.Lock()
	s.said = wire.AnnounceDigest(data) // not before: a beat that overtook the announcement would have everybody asked
	s.mu.Unlock()
	beacon.Kick()
}

func (s *Instance) beat() heartbeat.Message {
	s.mu.Lock()
	b := heartbeat.Message{ID: s.announce.ID, Version: s.announce.Version, Instance: s.announce.Instance, Announced: s.said}
	breaker := s.breaker
	s.mu.Unlock()
	status := s.machine.Status()
	b.State, b.Reason = status.State()
	b.Restarts = status.Restarts()
	if breaker != nil {
		b.Breaker = breaker()
	}
	b.UptimeSecs = int64(time.Since(s.born) / time.Second)
	b.Inflight, b.Calls, b.Errors = s.inflight.Load(), s.calls.Load(), s.errors.Load()
	return b
}

func (s *Instance) goodbye(cause error) error {
	g := wire.ShutdownNotice{ID: s.id, Instance: s.instance, Reason: "shutdown"}
	if errors.Is(cause, ErrRemoved) {
		g.Reason = wire.ReasonRemoved
	}
	data, err := json.Marshal(g)
	if err == nil {
		err = s.node.nc.Publish(s.node.opt.Prefix.Shutdown(g.ID), data)
	}
	if err != nil {
		return fmt.Errorf("saying good-bye for %s: %w", g.ID, err)
	}
	if g.Reason == wire.ReasonRemoved {
		s.node.repeat(farewell{instance: s.instance, subject: s.node.opt.Prefix.Shutdown(g.ID), data: data, said: time.Now()})
	}
	return nil
}

// farewell is a good-bye for good. It is said twice, since who goes while others stay has nobody that would miss its
// answers: were it lost, the registry would show an instance as lost that nobody expects.
type farewell struct {
	instance, subject string
	data              []byte
	said              time.Time
}

const farewellAgain = 2 * time.Second

func (n *Publisher) repeat(f farewell) {
	n.mu.Lock()
	n.farewells = append(n.farewells, f)
	n.mu.Unlock()
	n.startTick()
}

// sayAgain says the farewells again that were said before a time, except of who is back.
func (n *Publisher) sayAgain(before time.Time) {
	n.mu.Lock()
	var due []farewell
	for len(n.farewells) > 0 && !n.farewells[0].said.After(before) {
		if f := n.farewells[0]; n.slots[f.instance] == nil {
			due = append(due, f)
		}
		n.farewells = n.farewells[1:]
	}
	n.mu.Unlock()
	for _, f := range due {
		if err := n.nc.Publish(f.subject, f.data); err != nil { // the connection is closed
			return
		}
	}
}
