package registry

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestInventory: what a bridge lists is in the catalog, and follows its deltas. A shutdown is shown; what is removed, or
// no longer listed by a full inventory, is gone.
func TestInventory(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		one, two := b.ext("weather", "1.0.0", "n1", "today"), b.ext("weather", "1.0.0", "n2", "today")
		clock := b.ext("clock", "1.0.0", "n1", "now")
		f := b.bridge("one", "r1", one.entry("one", heartbeat.Spawning), two.entry("one", heartbeat.Ready), clock.entry("one", heartbeat.Ready),
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
		f.set(one.entry("one", heartbeat.Ready), two.entry("one", heartbeat.Shutdown))
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
	for name, lose := range map[string]func(f *fakeBridge, e *fakeExt){
		"a state":   func(f *fakeBridge, e *fakeExt) { f.set(e.entry("one", heartbeat.Failed)) },
		"a removal": func(f *fakeBridge, e *fakeExt) { f.remove(wire.InstanceRef{ID: "weather", Instance: "n1"}) },
	} {
		for _, leader := range []bool{true, false} { // a standby receives heartbeats, and does not ping
			t.Run(fmt.Sprintf("%s, leader %v", name, leader), func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *bed) {
					r, stop := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
					b.leading(r)
					e, stays := b.ext("weather", "1.0.0", "n1", "today"), b.ext("weather", "1.0.0", "n2", "today")
					f := b.bridge("one", "r1", e.entry("one", heartbeat.Ready), stays.entry("one", heartbeat.Ready))
					b.await("both are ready", func() bool { return b.instances("weather") == "n1 ready, n2 ready" && f.is(heartbeat.Ready)() })
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
		f := b.bridge("one", "r1", old.entry("one", heartbeat.Ready), other.entry("one", heartbeat.Ready))
		b.await("they are up", func() bool { return b.instances("weather") == "old ready" && b.is("clock", heartbeat.Ready)() })
		f.kill()
		old.silence()
		next := b.ext("weather", "1.0.0", "new", "today")
		start := time.Now()
		b.bridge("one", "r2", next.entry("one", heartbeat.Failed))
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
				f := b.bridge("one", "r1", kept.entry("one", heartbeat.Ready), gone.entry("one", heartbeat.Ready))
				b.await("both are ready", func() bool { return b.instances("weather") == "gone ready, kept ready" })
				stop()
				f.kill()
				var next *Registry
				if !standby {
					next, _ = b.registry(slow)
					b.leading(next)
				}
				b.bridge("one", "r2", kept.entry("one", heartbeat.Ready))
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
		f := b.bridge("one", "r1", b.ext("weather", "1.0.0", "n1", "today").entry("one", heartbeat.Ready),
			b.ext("clock", "1.0.0", "n1", "now").entry("one", heartbeat.Ready))
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
		b.bridge("one", "r1", bridged.entry("one", heartbeat.Ready))
		b.await("they are ready", func() bool { return b.is("weather", heartbeat.Ready)() && b.is("clock", heartbeat.Ready)() })
		f := b.bridge("two", "r1", bridged.entry("two", heartbeat.Failed), native.entry("two", heartbeat.Failed),
			b.ext("mine", "1.0.0", "n1", "x").entry("two", heartbeat.Ready))
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
		one, two := b.bridge("one", "r1", declared), b.bridge("two", "r1", declared)
		b.await("it is there", func() bool { return b.get(fleet.SpecKey("declared")) != nil && two.is(heartbeat.Ready)() })
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

// TestManifestOfAnnouncedService: the announcement of a running service without instance names counts instead of its
// manifest on a bridge.
func TestManifestOfAnnouncedService(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		declared := wire.InventoryInstance{Announce: wire.Announce{ID: "weather", Version: "1.0.0", Transport: "nats"}}
		one := b.bridge("one", "r1", declared)
		b.await("the manifest is there", func() bool { s, _ := b.spec("weather"); return s.Version == "1.0.0" })
		e := b.ext("weather", "1.4.0", "", "get")
		e.up()
		stop := e.sendHeartbeats()
		announced := func() bool { s, _ := b.spec("weather"); return s.Version == "1.4.0" && len(s.Tools) == 1 }
		b.await("the service is there", announced)
		one.set(declared)
		time.Sleep(2 * time.Second) // fake time
		if !announced() {
			t.Error("the manifest counts instead of the announcement")
		}
		one.remove(declared.Ref())
		time.Sleep(2 * time.Second) // fake time
		if !announced() || !b.is("weather", heartbeat.Ready)() {
			t.Error("the service was removed with its manifest")
		}
		one.set(declared)
		stop()
		b.await("it is lost", b.is("weather", heartbeat.Lost))
		one.set(declared)
		b.await("its manifest counts again", func() bool { s, _ := b.spec("weather"); return s.Version == "1.0.0" })
	})
}

// TestInventorySkills: skills follow the inventory and go with their bridge.
func TestInventorySkills(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		f := b.bridge("one", "r1")
		f.addSkill(wire.SkillEntry{Dir: "cook", Name: "Cook", Body: "fry"})
		there := func(dir string) func() bool { return func() bool { return b.get(fleet.SkillKey(dir)) != nil } }
		b.await("the skill is there", there("cook"))
		f.mu.Lock()
		f.send(wire.Inventory{Kind: wire.InventoryDelta, Skills: []wire.SkillEntry{{Dir: "bake", Body: "bake"}}, RemovedSkills: []string{"cook"}})
		f.mu.Unlock()
		b.await("another has replaced it", func() bool { return there("bake")() && !there("cook")() })
		b.await("the bridge is up", func() bool { return f.is(heartbeat.Ready)() })
		f.kill()
		b.await("the skill is gone with its bridge", func() bool { return !there("bake")() })
	})
}
