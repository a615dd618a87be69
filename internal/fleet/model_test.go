package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// memCatalog is a catalog in memory, which outlives the Fleet that writes it.
type memCatalog struct {
	docs     map[string]Record
	revision uint64
}

func (c *memCatalog) Synced() bool { return true }

func (c *memCatalog) Get(key string) (Record, bool) {
	r, ok := c.docs[key]
	return r, ok
}

func (c *memCatalog) Each(f func(key string, r Record)) {
	for key, r := range c.docs {
		f(key, r)
	}
}

// simBridge is a bridge of the model.
type simBridge struct {
	name    string
	run     int
	seq     uint64
	up      bool
	entries map[wire.InstanceRef]heartbeat.State
}

// model is what really runs, and a registry that receives only a part of the messages about it.
type model struct {
	*testing.T
	rand    *rand.Rand
	at      time.Time
	lossy   bool
	down    int // steps until the registry runs again
	catalog *memCatalog
	fleet   *Fleet
	bridges []*simBridge
	natives map[wire.InstanceRef]heartbeat.State // ready, or absent if the service has stopped
	seq     map[wire.InstanceRef]uint64
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{T: t, rand: rand.New(rand.NewPCG(seed, 3)), at: time.Unix(1_800_000_000, 0), catalog: &memCatalog{docs: map[string]Record{}},
		natives: map[wire.InstanceRef]heartbeat.State{}, seq: map[wire.InstanceRef]uint64{}}
	for n := range 2 {
		m.bridges = append(m.bridges, &simBridge{name: fmt.Sprint("b", n), run: 1, up: true, entries: map[wire.InstanceRef]heartbeat.State{}})
	}
	m.startRegistry()
	return m
}

// startRegistry replaces the registry by one that has only the catalog.
func (m *model) startRegistry() {
	m.fleet = New(Config{Prefix: "ext", Room: 1 << 30, Heartbeat: liveness.Config{Interval: time.Second}}, m.catalog)
	m.fleet.SetLimits(Limits{Value: 1 << 20, Spec: 1 << 20})
	m.fleet.Elected(m.at)
	m.fleet.RequestAll(true, m.at)
	m.settle()
}

// deliver sends a message to the registry: on a lossy way perhaps not at all, or twice.
func (m *model) deliver(verb, name string, doc any) {
	data, err := json.Marshal(doc)
	if err != nil {
		m.Fatal(err)
	}
	times := 1
	if m.down > 0 {
		return
	}
	if m.lossy {
		times = []int{1, 1, 1, 1, 0, 2}[m.rand.IntN(6)]
	}
	for range times {
		m.fleet.Control(verb, name, data, m.at)
	}
}

func (m *model) send(b *simBridge, v wire.Inventory) {
	if v.Kind != wire.InventoryHeartbeat {
		b.seq++
	}
	v.Bridge, v.Run, v.Seq, v.IntervalMS = b.name, fmt.Sprint("r", b.run), b.seq, 1000
	m.deliver("host", b.name, v)
}

func (m *model) entry(b *simBridge, ref wire.InstanceRef) wire.InventoryInstance {
	return wire.InventoryInstance{State: b.entries[ref], Announce: wire.Announce{ID: ref.ID, Version: "1.0.0", Instance: ref.Instance, Bridge: b.name,
		HandshakeHash: "h", Features: []string{wire.FeatureInstance}}}
}

func (m *model) full(b *simBridge) {
	if !b.up {
		return
	}
	v := wire.Inventory{Kind: wire.InventoryFull, Host: &wire.InventoryHost{Version: "1.0.0", Since: time.Unix(int64(b.run), 0)}}
	for ref := range b.entries {
		v.Instances = append(v.Instances, m.entry(b, ref))
	}
	m.send(b, v)
}

func (m *model) announce(ref wire.InstanceRef) {
	m.deliver("announce", ref.ID, wire.Announce{ID: ref.ID, Version: "1.0.0", Instance: ref.Instance, HandshakeHash: "h", Features: []string{wire.FeatureInstance}})
	m.beat(ref)
}

func (m *model) beat(ref wire.InstanceRef) {
	m.seq[ref]++
	m.deliver("heartbeat", ref.ID, heartbeat.Message{ID: ref.ID, Instance: ref.Instance, Seq: m.seq[ref], State: m.natives[ref], IntervalMS: 1000})
}

// settle carries out effects, and writes the catalog, until nothing is left to do.
func (m *model) settle() {
	for {
		more := m.fleet.Settle(m.at)
		marks, effects := m.fleet.Take()
		for key := range marks {
			if m.fleet.Held(key) {
				m.fleet.mark(key, false)
				continue
			}
			m.write(key)
		}
		for _, e := range effects {
			m.perform(e)
		}
		if err := m.fleet.checkAccounting(); err != nil {
			m.Fatal(err)
		}
		if !more && len(effects) == 0 && len(marks) == 0 {
			return
		}
	}
}

func (m *model) write(key string) {
	have := m.catalog.docs[key].Value
	value, err := m.fleet.Document(key, have, m.at)
	switch {
	case err != nil:
		m.Fatal(err)
	case value == nil:
		delete(m.catalog.docs, key)
	default:
		m.catalog.revision++
		m.catalog.docs[key] = Record{Value: value, Revision: m.catalog.revision}
	}
}

func (m *model) perform(e Effect) {
	switch e := e.(type) {
	case RequestAnnouncements:
		for ref := range m.natives {
			m.announce(ref)
		}
		for _, b := range m.bridges {
			m.full(b)
		}
	case RequestInventory:
		m.full(m.bridge(e.Bridge))
	case PingBridge:
		b := m.bridge(e.Bridge)
		r := PingResult{Outcome: NoResponders}
		if b.up {
			r = PingResult{Outcome: Answered, Answer: json.RawMessage(fmt.Sprintf(`{"run":"r%d","seq":%d}`, b.run, b.seq))}
		}
		m.fleet.Pinged(e, r, m.at)
	case ConfirmGone:
		m.fleet.BridgeGone(e, m.at)
	case Ping:
		reason := "no responders"
		if m.answers(e.Subject) {
			reason = ""
		}
		m.fleet.Probed(e, reason, nil, m.at)
	case Handshake:
		answer, err := json.RawMessage(`{"tools":[{"name":"t"}]}`), error(nil)
		if !m.answers(e.Subject) {
			err = errors.New("no responders")
		}
		m.fleet.HandshakeDone(e, ParseOffer(answer, err, 1<<20), m.at)
	}
}

func (m *model) bridge(name string) *simBridge {
	n := slices.IndexFunc(m.bridges, func(b *simBridge) bool { return b.name == name })
	return m.bridges[n]
}

// answers reports whether an instance that takes calls is subscribed to its subject.
func (m *model) answers(subject string) bool {
	for ref, s := range m.running() {
		if s == heartbeat.Ready && subject == wire.Prefix("ext").InstanceRPC(ref.ID, ref.Instance) {
			return true
		}
	}
	return false
}

// running is the state of every instance, those of bridges that are down excepted.
func (m *model) running() map[wire.InstanceRef]heartbeat.State {
	out := maps.Clone(m.natives)
	for _, b := range m.bridges {
		if b.up {
			maps.Copy(out, b.entries)
		}
	}
	return out
}

// step changes something.
func (m *model) step() {
	b := m.bridges[m.rand.IntN(len(m.bridges))]
	ref := wire.InstanceRef{ID: fmt.Sprint("x", m.rand.IntN(3)), Instance: fmt.Sprint(b.name, "-", b.run, "-", m.rand.IntN(3))}
	native := wire.InstanceRef{ID: fmt.Sprint("x", m.rand.IntN(4)), Instance: fmt.Sprint("n", m.rand.IntN(2))}
	switch m.rand.IntN(10) {
	case 0, 1, 2:
		if b.up {
			b.entries[ref] = []heartbeat.State{heartbeat.Ready, heartbeat.Ready, heartbeat.Restarting, heartbeat.Failed, heartbeat.Shutdown}[m.rand.IntN(5)]
			m.send(b, wire.Inventory{Kind: wire.InventoryDelta, Instances: []wire.InventoryInstance{m.entry(b, ref)}})
		}
	case 3:
		if b.up {
			delete(b.entries, ref)
			m.send(b, wire.Inventory{Kind: wire.InventoryDelta, Removed: []wire.InstanceRef{ref}})
		}
	case 4:
		if b.up = !b.up; b.up { // the next run
			b.run, b.seq = b.run+1, 0
			b.entries = map[wire.InstanceRef]heartbeat.State{{ID: ref.ID, Instance: fmt.Sprint(b.name, "-", b.run, "-0")}: heartbeat.Ready}
			m.full(b)
		}
	case 5, 6:
		m.natives[native] = heartbeat.Ready
		m.announce(native)
	case 7:
		delete(m.natives, native)
		m.deliver("shutdown", native.ID, wire.ShutdownNotice{ID: native.ID, Instance: native.Instance, Reason: "shutdown"})
	case 8:
		m.deliver("suspect", native.ID, map[string]string{"reason": "timeout"})
	case 9:
		if m.down == 0 && m.rand.IntN(4) == 0 {
			m.down = 1 + m.rand.IntN(5)
			return
		}
	}
	if m.down > 0 {
		if m.down--; m.down == 0 {
			m.startRegistry()
		}
		return
	}
	m.settle()
}

// pass lets time pass. Every second all that is up sends a heartbeat.
func (m *model) pass(d time.Duration) {
	for range d / (500 * time.Millisecond) {
		m.at = m.at.Add(500 * time.Millisecond)
		if m.down > 0 {
			continue
		}
		if m.at.Nanosecond() == 0 {
			for ref := range m.natives {
				m.beat(ref)
			}
			for _, b := range m.bridges {
				if b.up {
					m.send(b, wire.Inventory{Kind: wire.InventoryHeartbeat})
				}
			}
		}
		m.fleet.Verified(m.at, true, m.at)
		m.fleet.Tick(m.at)
		m.settle()
	}
}

// shown is the state of every instance in the catalog, except of native ones that have stopped and those of a bridge that is
// down. With a ready one, the tools have to be there, too.
func (m *model) shown() map[wire.InstanceRef]string {
	out := map[wire.InstanceRef]string{}
	for key, r := range m.catalog.docs {
		id, ok := strings.CutPrefix(key, wire.KindState+".")
		var d wire.StateDoc
		if !ok || json.Unmarshal(r.Value, &d) != nil {
			continue
		}
		var s wire.Spec
		_ = json.Unmarshal(m.catalog.docs[SpecKey(id)].Value, &s)
		for _, i := range d.Instances {
			text := string(i.State)
			if i.State == heartbeat.Ready {
				text += fmt.Sprint(" with ", len(s.Tools), " tools")
			}
			stopped := i.State == heartbeat.Lost || i.State == heartbeat.Shutdown
			name, _, bridged := strings.Cut(i.Instance, "-")
			if !stopped || bridged && m.bridge(name).up {
				out[wire.InstanceRef{ID: id, Instance: i.Instance}] = text
			}
		}
	}
	return out
}

// TestRandomEvents compares a registry to which random messages were lost, doubled, or sent before it was replaced, with
// one that is built from scratch from what really runs. After one grace period without losses both have the same catalog.
func TestRandomEvents(t *testing.T) {
	for seed := range uint64(60) {
		m := newModel(t, seed)
		for range 4 {
			m.lossy = true
			for range 30 {
				m.step()
				m.pass(time.Duration(m.rand.IntN(3)) * 500 * time.Millisecond)
			}
			m.lossy = false
			for m.down > 0 {
				m.step()
			}
			m.pass(12 * time.Second)
			naive := newModel(t, seed)
			naive.at, naive.natives = m.at, m.natives
			for n, b := range m.bridges {
				same := *b // it numbers its messages alone, or the other registry would see a gap
				naive.bridges[n] = &same
				naive.full(&same)
			}
			naive.pass(3 * time.Second)
			m.at = naive.at
			m.pass(time.Second)
			if got, want := m.shown(), naive.shown(); !maps.Equal(got, want) {
				t.Fatalf("seed %d: the catalog has %v, from scratch it is %v; what runs is %v", seed, got, want, m.running())
			}
			for ref, state := range m.running() {
				want := string(state)
				if state == heartbeat.Ready {
					want += " with 1 tools"
				}
				if got := m.shown()[ref]; got != want {
					t.Fatalf("seed %d: %v is %q, it should be %q", seed, ref, got, want)
				}
			}
		}
	}
}
