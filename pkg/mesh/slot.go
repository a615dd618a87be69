package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// ErrRemoved, as the cause of the context given to Slot.Run, says that the slot will not return: the
// registry forgets it instead of showing it as shut down.
var ErrRemoved = errors.New(GoodbyeRemoved)

// Slot is one slot of an extension on the mesh. Its identity (the instance) survives its lives: what runs
// in the slot may crash and come back, and each ready life is one call of Serve.
type Slot struct {
	node         *Node
	id, instance string
	born         time.Time
	beacon       *heartbeat.Beacon

	telling sync.Mutex // announcements go out in the order in which they came about

	mu       sync.Mutex
	announce Announce
	joined   bool
	state    heartbeat.State
	reason   string
	restarts uint64
	breaker  func() *heartbeat.Breaker

	inflight atomic.Int64
	calls    atomic.Uint64
	errors   atomic.Uint64
	tally    tally
}

// Run announces the slot and beats until ctx ends, then says good-bye.
func (s *Slot) Run(ctx context.Context) error {
	n := s.node
	n.mu.Lock()
	n.slots[s.instance] = s
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.slots, s.instance)
		n.mu.Unlock()
	}()
	s.mu.Lock()
	s.joined = true
	s.mu.Unlock()
	// Who is called lost, and lives, says so at once instead of at the next beat. Without the permission to
	// hear it, the next beat it is.
	if word, err := n.nc.ChanSubscribe(n.stateEvents()+s.id, n.in); err == nil {
		defer word.Unsubscribe()
	}
	s.announceNow()
	err := s.beacon.Run(ctx, s.publishBeat)
	return errors.Join(err, s.goodbye(context.Cause(ctx)))
}

// ID is the extension's id.
func (s *Slot) ID() string { return s.id }

// Instance is the slot's identity; it survives restarts.
func (s *Slot) Instance() string { return s.instance }

// SetState tells the mesh how the slot is, at once.
func (s *Slot) SetState(state heartbeat.State, reason string) {
	s.mu.Lock()
	changed := s.state != state || s.reason != reason
	s.state, s.reason = state, reason
	s.mu.Unlock()
	if changed {
		s.beacon.Kick()
	}
}

// State is what SetState was told last.
func (s *Slot) State() (heartbeat.State, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.reason
}

// SetRestarts sets how many lives came after the first.
func (s *Slot) SetRestarts(n uint64) {
	s.mu.Lock()
	s.restarts = n
	s.mu.Unlock()
}

// SetBreaker sets where beats learn the state of the slot's breaker; call Beat when it changes.
func (s *Slot) SetBreaker(f func() *heartbeat.Breaker) {
	s.mu.Lock()
	s.breaker = f
	s.mu.Unlock()
}

// Beat beats now instead of at the next turn.
func (s *Slot) Beat() { s.beacon.Kick() }

// Update changes what the slot announces (a handshake's hash, say) and announces it if that made a
// difference. The id and the instance stay.
func (s *Slot) Update(change func(*Announce)) {
	s.mu.Lock()
	before, _ := json.Marshal(s.announce)
	a := s.announce
	change(&a)
	a.ID, a.Instance, a.SchemaVersion = s.id, s.instance, SchemaVersion
	s.announce = a
	after, _ := json.Marshal(a)
	joined := s.joined
	s.mu.Unlock()
	if joined && string(before) != string(after) {
		s.announceNow()
	}
}

// Announced is what the slot announces now.
func (s *Slot) Announced() Announce {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.announce
}

// announceNow publishes the announcement and beats right behind it, so that whoever has just learnt of the
// slot also learns how it is.
func (s *Slot) announceNow() {
	s.telling.Lock()
	defer s.telling.Unlock()
	a := s.Announced()
	data, err := json.Marshal(a)
	if err == nil {
		err = s.node.nc.Publish(s.node.opt.Prefix.Announce(a.ID), data)
	}
	if err != nil {
		s.node.opt.Logger.Warn("could not announce", "extension", a.ID, "error", err)
	}
	s.beacon.Kick()
}

func (s *Slot) beat() heartbeat.Beat {
	s.mu.Lock()
	b := heartbeat.Beat{
		ID: s.announce.ID, Version: s.announce.Version, Instance: s.announce.Instance,
		State: s.state, Reason: s.reason, Restarts: s.restarts,
	}
	breaker := s.breaker
	s.mu.Unlock()
	if breaker != nil {
		b.Breaker = breaker()
	}
	b.UptimeSecs = int64(time.Since(s.born) / time.Second)
	b.Inflight, b.Calls, b.Errors = s.inflight.Load(), s.calls.Load(), s.errors.Load()
	return b
}

func (s *Slot) publishBeat(b heartbeat.Beat) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return s.node.nc.Publish(s.node.opt.Prefix.Heartbeat(b.ID), data)
}

func (s *Slot) goodbye(cause error) error {
	g := Goodbye{ID: s.id, Instance: s.instance, Reason: "shutdown"}
	if errors.Is(cause, ErrRemoved) {
		g.Reason = GoodbyeRemoved
	}
	data, err := json.Marshal(g)
	if err == nil {
		err = s.node.nc.Publish(s.node.opt.Prefix.Shutdown(g.ID), data)
	}
	if err != nil {
		return fmt.Errorf("saying good-bye for %s: %w", g.ID, err)
	}
	return nil
}
