package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// listingBridge is one run of a bridge that sends inventories. It answers pings and requests for its inventory until
// it is killed.
type listingBridge struct {
	*bed
	name string
	run  string
	sub  *nats.Subscription

	mu        sync.Mutex
	seq       uint64
	fulls     int // full inventories sent
	lose      int // messages that are numbered and not sent
	instances map[wire.InstanceRef]wire.InventoryInstance
	skills    map[string]wire.SkillEntry
	since     time.Time
}

// listing starts a run of a bridge with these instances and sends its full inventory.
func (b *bed) listing(name, run string, list ...wire.InventoryInstance) *listingBridge {
	b.Helper()
	f := &listingBridge{bed: b, name: name, run: run, instances: map[wire.InstanceRef]wire.InventoryInstance{}, skills: map[string]wire.SkillEntry{}, since: time.Now().UTC()}
	for _, i := range list {
		f.instances[i.Ref()] = i
	}
	sub, err := b.nc.Subscribe(prefix.Control(name), f.control)
	if err != nil {
		b.Fatal(err)
	}
	f.sub = sub
	requests, err := b.nc.Subscribe(prefix.AnnounceRequest(), func(*nats.Msg) {
		if f.sub.IsValid() {
			f.full()
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = requests.Unsubscribe() }) // the connection may be closed already
	b.flush(b.nc)
	f.full()
	return f
}

func (f *listingBridge) control(m *nats.Msg) {
	f.mu.Lock()
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":{"run":%q,"seq":%d}}`, f.run, f.seq)
	f.mu.Unlock()
	if strings.Contains(string(m.Data), `"inventory"`) {
		f.full()
	}
	_ = m.Respond([]byte(answer)) // fails only if the test closed the connection
}

// send numbers and publishes a message.
func (f *listingBridge) send(v wire.Inventory) {
	v.SchemaVersion, v.Bridge, v.Run, v.IntervalMS = wire.SchemaVersion, f.name, f.run, f.interval.Milliseconds()
	if v.Kind != wire.InventoryHeartbeat {
		f.seq++
	}
	if v.Seq = f.seq; f.lose > 0 {
		f.lose--
		return
	}
	f.publish(prefix.HostReport(f.name), v)
}

func (f *listingBridge) full() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fulls++
	f.send(wire.Inventory{Kind: wire.InventoryFull, Host: &wire.InventoryHost{Host: "host of " + f.name, Version: "1.0.0", Since: f.since},
		Instances: slices.Collect(maps.Values(f.instances)), Skills: slices.Collect(maps.Values(f.skills))})
}

func (f *listingBridge) heartbeat() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.send(wire.Inventory{Kind: wire.InventoryHeartbeat})
}

// set changes or adds instances.
func (f *listingBridge) set(list ...wire.InventoryInstance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range list {
		f.instances[i.Ref()] = i
	}
	f.send(wire.Inventory{Kind: wire.InventoryDelta, Instances: list})
}

func (f *listingBridge) remove(list ...wire.InstanceRef) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ref := range list {
		delete(f.instances, ref)
	}
	f.send(wire.Inventory{Kind: wire.InventoryDelta, Removed: list})
}

// loseNext makes the next message get lost.
func (f *listingBridge) loseNext() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lose = 1
}

func (f *listingBridge) kill() {
	if err := f.sub.Unsubscribe(); err != nil {
		f.Fatal(err)
	}
	f.flush(f.nc)
}

func (f *listingBridge) doc() (h wire.Host) {
	if v := f.get(fleet.HostKey(f.name)); v != nil {
		if err := json.Unmarshal(v, &h); err != nil {
			f.Error(err)
		}
	}
	return h
}

// listed is an entry of the inventory for a fakeExt.
func (e *fakeExt) listed(bridge string, s heartbeat.State) wire.InventoryInstance {
	a := e.a
	a.Bridge, a.Host = bridge, "host of "+bridge
	return wire.InventoryInstance{Announce: a, State: s}
}

// TestInventory: what a bridge lists is in the catalog, and follows its deltas. A shutdown is shown; what is removed, or
// no longer listed by a full inventory, is gone.
func TestInventory(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		one, two := b.ext("weather", "1.0.0", "n1", "today"), b.ext("weather", "1.0.0", "n2", "today")
		clock := b.ext("clock", "1.0.0", "n1", "now")
		f := b.listing("one", "r1", one.listed("one", heartbeat.Spawning), two.listed("one", heartbeat.Ready), clock.listed("one", heartbeat.Ready),
			wire.InventoryInstance{Announce: wire.Announce{ID: "declared", Version: "1.0.0", Transport: "nats"}})
		b.await("all are shown", func() bool {
			s, _ := b.spec("weather")
			return b.instances("weather") == "n1 spawning, n2 ready" && len(s.Tools) == 1 && b.is("clock", heartbeat.Ready)() && b.is("declared", heartbeat.Lost)()
		})
		if i := b.state("weather").Instances[0]; i.Bridge != "one" || i.Host != "host of one" {
			t.Errorf("instance: %+v", i)
		}
		b.await("the host is ready and lists them", func() bool {
			h := f.doc()
			return h.State == heartbeat.Ready && slices.Equal(h.Extensions, []string{"clock", "weather"})
		})
		f.set(one.listed("one", heartbeat.Ready), two.listed("one", heartbeat.Shutdown))
		b.await("the delta is shown", func() bool { return b.instances("weather") == "n1 ready, n2 shutdown" })
		f.remove(wire.InstanceRef{ID: "clock", Instance: "n1"}, wire.InstanceRef{ID: "declared"})
		b.await("what is removed is gone", func() bool {
			return b.get(fleet.SpecKey("clock")) == nil && b.get(fleet.StateKey("clock")) == nil && b.get(fleet.SpecKey("declared")) == nil
		})
		f.mu.Lock()
		delete(f.instances, wire.InstanceRef{ID: "weather", Instance: "n2"})
		f.mu.Unlock()
		f.full()
		b.await("what is not listed is gone", func() bool { return b.instances("weather") == "n1 ready" })
	})
}

// TestLostInventoryMessage: any lost message is noticed with the next ping or heartbeat, and the full inventory corrects
// the catalog.
func TestLostInventoryMessage(t *testing.T) {
	for name, lose := range map[string]func(f *listingBridge, e *fakeExt){
		"a state":   func(f *listingBridge, e *fakeExt) { f.set(e.listed("one", heartbeat.Failed)) },
		"a removal": func(f *listingBridge, e *fakeExt) { f.remove(wire.InstanceRef{ID: "weather", Instance: "n1"}) },
	} {
		for _, leader := range []bool{true, false} { // a standby receives heartbeats, and does not ping
			t.Run(fmt.Sprintf("%s, leader %v", name, leader), func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *bed) {
					r, stop := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
					b.leading(r)
					e, stays := b.ext("weather", "1.0.0", "n1", "today"), b.ext("weather", "1.0.0", "n2", "today")
					f := b.listing("one", "r1", e.listed("one", heartbeat.Ready), stays.listed("one", heartbeat.Ready))
					b.await("both are ready", func() bool { return b.instances("weather") == "n1 ready, n2 ready" && f.doc().State == heartbeat.Ready })
					if !leader {
						standby, _ := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
						b.await("the standby has them", func() bool { return b.status(standby).Instances[heartbeat.Ready] == 2 })
						time.Sleep(2 * time.Second) // fake time: its inventory request is answered
						stop()
						f.loseNext()
						lose(f, e)
						f.heartbeat()
						b.leading(standby)
					} else {
						f.loseNext()
						lose(f, e)
					}
					start := time.Now()
					b.await("the catalog is right", func() bool { return !strings.Contains(b.instances("weather"), "n1 ready") })
					if d := time.Since(start); d > 4*time.Second {
						t.Errorf("it took %v", d)
					}
				})
			})
		}
	}
}

// TestInventoryOfNewRun: a bridge is killed and starts again at once. Its first inventory removes the instances of its
// earlier run.
func TestInventoryOfNewRun(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
		b.leading(r)
		old, other := b.ext("weather", "1.0.0", "old", "today"), b.ext("clock", "1.0.0", "c", "now")
		f := b.listing("one", "r1", old.listed("one", heartbeat.Ready), other.listed("one", heartbeat.Ready))
		b.await("they are up", func() bool { return b.instances("weather") == "old ready" && b.is("clock", heartbeat.Ready)() })
		f.kill()
		old.silence()
		next := b.ext("weather", "1.0.0", "new", "today")
		start := time.Now()
		b.listing("one", "r2", next.listed("one", heartbeat.Failed))
		b.await("only the new run is shown", func() bool { return b.instances("weather") == "new failed" && b.get(fleet.SpecKey("clock")) == nil })
		if d := time.Since(start); d > time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestInventoryAfterRegistryRestart: a new leader has instances of a bridge only from the catalog. The bridge's full
// inventory, whether it arrives before or after the restore, removes those that it does not list.
func TestInventoryAfterRegistryRestart(t *testing.T) {
	for _, standby := range []bool{false, true} {
		t.Run(fmt.Sprintf("standby %v", standby), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bed) {
				slow := Config{Heartbeat: liveness.Config{Grace: 100}}
				r, stop := b.registry(slow)
				b.leading(r)
				kept, gone := b.ext("weather", "1.0.0", "kept", "today"), b.ext("weather", "1.0.0", "gone", "today")
				f := b.listing("one", "r1", kept.listed("one", heartbeat.Ready), gone.listed("one", heartbeat.Ready))
				b.await("both are ready", func() bool { return b.instances("weather") == "gone ready, kept ready" })
				stop()
				f.kill()
				var next *Registry
				if !standby {
					next, _ = b.registry(slow)
					b.leading(next)
				}
				b.listing("one", "r2", kept.listed("one", heartbeat.Ready))
				if standby {
					next, _ = b.registry(slow)
					b.leading(next)
				}
				b.await("only what it lists is shown", func() bool { return b.instances("weather") == "kept ready" })
				time.Sleep(5 * time.Second) // fake time
				if got := b.instances("weather"); got != "kept ready" {
					t.Errorf("later: %s", got)
				}
			})
		})
	}
}

// TestBridgeHeartbeats: heartbeats of a bridge keep all its instances ready. Without them, and without answers to
// pings, all are lost; the next message restores them.
func TestBridgeHeartbeats(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		f := b.listing("one", "r1", b.ext("weather", "1.0.0", "n1", "today").listed("one", heartbeat.Ready),
			b.ext("clock", "1.0.0", "n1", "now").listed("one", heartbeat.Ready))
		both := func(s heartbeat.State) func() bool {
			return func() bool { return b.is("weather", s)() && b.is("clock", s)() }
		}
		b.await("both are ready", both(heartbeat.Ready))
		for range 10 {
			time.Sleep(time.Second) // fake time: more than a grace period in all
			f.heartbeat()
			if !both(heartbeat.Ready)() {
				t.Fatalf("weather is %s, clock is %s", b.state("weather").State, b.state("clock").State)
			}
		}
		b.await("both are lost after a grace period of silence", both(heartbeat.Lost))
		f.heartbeat()
		b.await("a heartbeat restores both", both(heartbeat.Ready))
		f.kill()
		start := time.Now()
		b.await("both are lost with their bridge", both(heartbeat.Lost))
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestInventoryCannotTakeOver: a bridge cannot list or remove an instance of another bridge or of a native service.
func TestInventoryCannotTakeOver(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
		b.leading(r)
		bridged, native := b.ext("weather", "1.0.0", "n1", "today"), b.ext("clock", "1.0.0", "n1", "now")
		native.a.Bridge = ""
		native.up()
		b.listing("one", "r1", bridged.listed("one", heartbeat.Ready))
		b.await("they are ready", func() bool { return b.is("weather", heartbeat.Ready)() && b.is("clock", heartbeat.Ready)() })
		f := b.listing("two", "r1", bridged.listed("two", heartbeat.Failed), native.listed("two", heartbeat.Failed),
			b.ext("mine", "1.0.0", "n1", "x").listed("two", heartbeat.Ready))
		b.await("its own instance is shown", b.is("mine", heartbeat.Ready))
		f.remove(wire.InstanceRef{ID: "weather", Instance: "n1"}, wire.InstanceRef{ID: "clock", Instance: "n1"})
		time.Sleep(2 * time.Second) // fake time
		if !b.is("weather", heartbeat.Ready)() || !b.is("clock", heartbeat.Ready)() {
			t.Errorf("weather is %s, clock is %s", b.state("weather").State, b.state("clock").State)
		}
		if n := b.status(r).Refused["inventory"]; n != 2 {
			t.Errorf("%d entries were refused", n)
		}
	})
}

// TestManifestOnTwoBridges: the manifest of a native service is on two bridges, and its entry stays until both have
// removed it.
func TestManifestOnTwoBridges(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		declared := wire.InventoryInstance{Announce: wire.Announce{ID: "declared", Version: "1.0.0", Transport: "nats"}}
		one, two := b.listing("one", "r1", declared), b.listing("two", "r1", declared)
		b.await("it is there", func() bool { return b.get(fleet.SpecKey("declared")) != nil && two.doc().State == heartbeat.Ready })
		one.remove(declared.Ref())
		time.Sleep(2 * time.Second) // fake time
		if b.get(fleet.SpecKey("declared")) == nil {
			t.Error("it was removed although one bridge still has its manifest")
		}
		two.remove(declared.Ref())
		b.await("it is gone", func() bool {
			return b.get(fleet.SpecKey("declared")) == nil && b.get(fleet.StateKey("declared")) == nil
		})
	})
}

// TestInventorySkills: skills follow the inventory and go with their bridge.
func TestInventorySkills(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		f := b.listing("one", "r1")
		f.mu.Lock()
		f.skills["cook"] = wire.SkillEntry{Dir: "cook", Name: "Cook", Body: "fry"}
		f.mu.Unlock()
		f.full()
		there := func(dir string) func() bool { return func() bool { return b.get(fleet.SkillKey(dir)) != nil } }
		b.await("the skill is there", there("cook"))
		f.mu.Lock()
		f.send(wire.Inventory{Kind: wire.InventoryDelta, Skills: []wire.SkillEntry{{Dir: "bake", Body: "bake"}}, RemovedSkills: []string{"cook"}})
		f.mu.Unlock()
		b.await("another has replaced it", func() bool { return there("bake")() && !there("cook")() })
		b.await("the bridge is up", func() bool { return f.doc().State == heartbeat.Ready })
		f.kill()
		b.await("the skill is gone with its bridge", func() bool { return !there("bake")() })
	})
}
