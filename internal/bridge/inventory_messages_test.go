package bridge

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// sentInventory is an inventory whose messages are recorded, with a receiver that applies them.
type sentInventory struct {
	*inventory
	limit int
	fail  func() bool // whether the next message cannot be published

	received sync.Mutex
	messages []wire.Inventory // since take was called

	seq     uint64
	entries map[wire.InstanceRef]wire.InventoryInstance
	host    wire.InventoryHost
	skills  int
}

func newSentInventory(t *testing.T) *sentInventory {
	s := &sentInventory{inventory: newInventory(wire.Inventory{Bridge: "b1", Run: "r1"}), limit: wire.MaxInventory,
		fail: func() bool { return false }, entries: map[wire.InstanceRef]wire.InventoryInstance{}}
	s.inventory.limit = func() int { return s.limit }
	s.log, s.interval = discard, func() time.Duration { return 15 * time.Second }
	s.contents = func() contents { return contents{host: wire.InventoryHost{Version: "1.0.0"}} }
	s.publish = func(m wire.Inventory) error {
		if s.fail() {
			return errors.New("no connection")
		}
		s.received.Lock()
		defer s.received.Unlock()
		s.messages = append(s.messages, m)
		s.receive(t, m)
		return nil
	}
	return s
}

// take returns the messages that were sent since its last call.
func (s *sentInventory) take() []wire.Inventory {
	s.received.Lock()
	defer s.received.Unlock()
	messages := s.messages
	s.messages = nil
	return messages
}

// receive applies a message as a registry does that misses none.
func (s *sentInventory) receive(t *testing.T, m wire.Inventory) {
	t.Helper()
	if size := encodedSize(m); size > s.limit {
		t.Errorf("a message of %d bytes, over the limit of %d", size, s.limit)
	}
	if want := s.interval().Milliseconds(); m.IntervalMS != want {
		t.Errorf("a message has the interval %d, want %d", m.IntervalMS, want)
	}
	if m.Kind == wire.InventoryHeartbeat {
		if m.Seq != s.seq {
			t.Errorf("a heartbeat with number %d after message %d", m.Seq, s.seq)
		}
		return
	}
	if m.Seq != s.seq+1 {
		t.Errorf("message %d follows %d", m.Seq, s.seq)
	}
	if s.seq = m.Seq; m.Kind == wire.InventoryFull && m.Part <= 1 {
		clear(s.entries)
		s.skills = 0
	}
	for _, i := range m.Instances {
		s.entries[wire.InstanceRef{ID: i.ID, Instance: i.Instance}] = i
	}
	for _, ref := range m.Removed {
		delete(s.entries, ref)
	}
	if m.Host != nil {
		s.host = *m.Host
	}
	s.skills += len(m.Skills)
}

func refOf(n int) wire.InstanceRef { return wire.InstanceRef{ID: fmt.Sprint("x", n), Instance: "i"} }

// list adds an entry with a text.
func (s *sentInventory) list(n int, text string) {
	ref := refOf(n)
	s.add(ref, func() wire.InventoryInstance {
		return wire.InventoryInstance{Announce: wire.Announce{ID: ref.ID, Instance: ref.Instance, Version: "1.0.0", About: wire.About{Description: text}}, State: heartbeat.Ready}
	})
}

// TestInventoryTimes: nothing is published before the first full inventory is requested, a change is published at once,
// many changes in few messages, and without changes there are heartbeats and a full inventory every five minutes.
func TestInventoryTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSentInventory(t)
		ctx, cancel := context.WithCancel(t.Context())
		connected := make(chan nats.Status)
		var running sync.WaitGroup
		running.Go(func() { s.run(ctx, connected) }) // ends with cancel
		next := func(what string, want ...wire.InventoryKind) {
			t.Helper()
			synctest.Wait()
			var got []wire.InventoryKind
			for _, m := range s.take() {
				got = append(got, m.Kind)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		s.list(1, "")
		time.Sleep(time.Minute)
		next("before the manifests are read")
		s.requestFull()
		next("the first message", wire.InventoryFull)
		time.Sleep(time.Second)
		s.change(refOf(1))
		next("a change", wire.InventoryDelta)
		s.change(refOf(2))
		next("a change of an instance that is not listed")
		for range 100 {
			s.change(refOf(1))
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if n := len(s.take()); n < 2 || n > 5 {
			t.Errorf("100 changes in 100 ms are published in %d messages", n)
		}
		time.Sleep(time.Second)
		s.take()
		for range 100 {
			s.requestFull()
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(s.take()); n < 3 || n > 5 {
			t.Errorf("100 requests in a second are answered with %d full inventories", n)
		}
		time.Sleep(time.Second)
		s.take()
		connected <- nats.CONNECTED
		next("a reconnect", wire.InventoryFull)
		time.Sleep(17 * time.Second)
		next("17 s without a change", wire.InventoryHeartbeat)
		time.Sleep(6 * time.Minute)
		full, beats := 0, 0
		for _, m := range s.take() {
			switch m.Kind {
			case wire.InventoryFull:
				full++
			case wire.InventoryHeartbeat:
				beats++
			}
		}
		if full < 1 || full > 2 || beats < 21 || beats > 27 {
			t.Errorf("in six minutes: %d full inventories and %d heartbeats", full, beats)
		}
		s.take()
		s.remove(refOf(1))
		cancel()
		running.Wait()
		next("a removal at the end", wire.InventoryDelta)
		if len(s.entries) != 0 {
			t.Errorf("at the end the receiver has %v", s.entries)
		}
	})
}

// TestInventoryAfterFailure: what could not be published is published as soon as that is possible again, whatever it was.
func TestInventoryAfterFailure(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			s := newSentInventory(t)
			s.limit = 2 << 10 // several messages
			var failing atomic.Bool
			failures := rand.New(rand.NewPCG(seed, 3)) // used by run only
			s.fail = func() bool { return failing.Load() && failures.IntN(2) == 0 }
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { s.run(ctx, nil) }) // ends with cancel
			s.requestFull()
			want := map[wire.InstanceRef]string{}
			for range 100 {
				n := r.IntN(30)
				synctest.Wait()
				failing.Store(r.IntN(3) == 0)
				switch r.IntN(4) {
				case 0:
					s.remove(refOf(n))
					delete(want, refOf(n))
				case 1:
					s.requestFull()
				default:
					text := fmt.Sprint(r.IntN(1000))
					s.list(n, text)
					want[refOf(n)] = text
				}
				time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
			}
			synctest.Wait()
			failing.Store(false)
			time.Sleep(time.Second)
			synctest.Wait()
			if len(s.entries) != len(want) {
				t.Errorf("seed %d: the receiver has %d entries, want %d", seed, len(s.entries), len(want))
			}
			for ref, text := range want {
				if got := s.entries[ref].Description; got != text {
					t.Errorf("seed %d: %s has %q, want %q", seed, ref.ID, got, text)
				}
			}
			cancel()
			running.Wait()
		})
	}
}

// TestInventorySizes: an inventory of any size is split into messages that fit, and problems that do not fit are counted.
func TestInventorySizes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                                              string
		instances, names, problems, message, skill, limit int
		parts, problemsShown                              int // at least
	}{
		{name: "small", instances: 10, problems: 10, message: 100, limit: wire.MaxInventory, parts: 1, problemsShown: 10},
		{name: "many instances", instances: 10_000, names: 10, limit: wire.MaxInventory, parts: 3},
		{name: "many problems", instances: 10, problems: 20_000, message: 100, limit: wire.MaxInventory, parts: 2, problemsShown: 700},
		{name: "one long problem", instances: 10, problems: 2, message: 10 * wire.MaxInventory, limit: wire.MaxInventory, parts: 1, problemsShown: 2},
		{name: "large skills", instances: 10, skill: 300 << 10, limit: wire.MaxInventory, parts: 3},
		{name: "small messages", instances: 100, names: 10, problems: 1000, message: 100, limit: 16 << 10, parts: 3, problemsShown: 20},
		{name: "an entry that is larger than a message", instances: 2, names: 5000, limit: 16 << 10, parts: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSentInventory(t)
			s.limit = tt.limit
			host := wire.InventoryHost{Version: "1.0.0"}
			for n := range tt.problems {
				host.Problems = append(host.Problems, wire.HostProblem{Path: fmt.Sprint("/srv/", n), Kind: "invalid", Message: strings.Repeat("<", tt.message)})
			}
			var skills []wire.SkillEntry
			if tt.skill > 0 {
				for n := range 3 {
					skills = append(skills, wire.SkillEntry{Name: "s", Dir: fmt.Sprint("s", n), Body: strings.Repeat("s", tt.skill)})
				}
			}
			s.contents = func() contents { return contents{host: host, skills: skills} }
			for n := range tt.instances {
				ref := refOf(n)
				a := wire.Announce{ID: ref.ID, Instance: ref.Instance, Version: "1.0.0"}
				for name := range tt.names {
					a.Capabilities.Channels = append(a.Capabilities.Channels, fmt.Sprint("name-", name))
				}
				s.add(ref, func() wire.InventoryInstance { return wire.InventoryInstance{Announce: a, State: heartbeat.Ready} })
			}
			s.requestFull()
			s.send(time.Now())
			if len(s.messages) < tt.parts || len(s.entries) != tt.instances || s.skills != len(skills) {
				t.Errorf("%d messages with %d instances and %d skills", len(s.messages), len(s.entries), s.skills)
			}
			for i, m := range s.messages {
				if max(m.Part, 1) != i+1 || max(m.Parts, 1) != len(s.messages) || (m.Host != nil) != (i == 0) {
					t.Errorf("message %d is part %d of %d", i+1, m.Part, m.Parts)
				}
			}
			if len(s.host.Problems) < tt.problemsShown || len(s.host.Problems)+s.host.ProblemsLeftOut != tt.problems {
				t.Errorf("%d problems and %d left out, of %d", len(s.host.Problems), s.host.ProblemsLeftOut, tt.problems)
			}
		})
	}
}
