package registry

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestMissedAnnouncement: the announcement of other tools is lost. The heartbeats reveal it.
func TestMissedAnnouncement(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		e := b.ext("weather", "1.0.0", "n1", "today")
		e.announceOnRequest()
		e.up()
		tools := func(want string) func() bool {
			return func() bool {
				s, _ := b.spec("weather")
				return len(s.Tools) == 1 && s.Tools[0].Own == want
			}
		}
		b.await("its tool is shown", tools("today"))
		e.mu.Lock()
		e.tools, e.a.HandshakeHash = []string{"tomorrow"}, "another"
		data, err := json.Marshal(e.a)
		if err != nil {
			t.Fatal(err)
		}
		e.digest = wire.AnnounceDigest(data)
		e.mu.Unlock()
		start := time.Now()
		e.sendHeartbeats()
		b.await("its new tool is shown", tools("tomorrow"))
		if d := time.Since(start); d > requestEvery+time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestUnannouncedMember: heartbeats alone do not add a member, and announcements are requested again.
func TestUnannouncedMember(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		e := b.ext("google.mail", "1.0.0", "n1", "send")
		e.a.Parent = "google"
		e.sendHeartbeats()
		time.Sleep(3 * time.Second) // the first announce request is lost: there is no subscriber yet
		e.announceOnRequest()
		b.await("it is ready", b.is("google.mail", heartbeat.Ready))
	})
}

// TestSkillsGoWithTheirBridge: skills are removed with their bridge even if it did not withdraw them, and come back
// with it.
func TestSkillsGoWithTheirBridge(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, stop := b.registry(Config{})
		b.leading(r)
		standby, _ := b.registry(Config{})
		one := b.bridge("one", "r1")
		one.addSkill(wire.SkillEntry{Dir: "cook", Name: "Cook", Body: "fry"})
		there := func() bool { return b.get(fleet.SkillKey("cook")) != nil }
		b.waitFor(standby, "the standby has the skill", func(f *fleet.Fleet) bool { return f.Summary().Skills == 1 })
		b.await("its skill is there", func() bool { return one.is(heartbeat.Ready)() && there() })
		one.kill()
		b.await("its skill is gone", func() bool { return one.is(heartbeat.Lost)() && !there() })
		stop()
		b.leading(standby) // it has received the skill, and has not pinged bridges until now
		time.Sleep(5 * time.Second)
		if there() {
			t.Error("a new leader brings it back")
		}
		again := b.bridge("one", "r2")
		again.addSkill(wire.SkillEntry{Dir: "cook", Name: "Cook", Body: "fry"})
		b.await("its skill is back", func() bool { return again.is(heartbeat.Ready)() && there() })
	})
}

// TestShutdownStays: an instance that its bridge has shut down is not shown as lost when the bridge stops.
func TestShutdownStays(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		one := b.bridge("one", "r1")
		clock := b.ext("clock", "1.0.0", "n1", "now").on(one)
		clock.up()
		b.await("the clock is ready", func() bool { return b.is("clock", heartbeat.Ready)() && one.is(heartbeat.Ready)() })
		clock.heartbeat(heartbeat.Shutdown)
		b.await("the clock is shut down", b.is("clock", heartbeat.Shutdown))
		one.kill()
		b.await("its bridge is gone", one.is(heartbeat.Lost))
		time.Sleep(5 * time.Second) // fake time
		if !b.is("clock", heartbeat.Shutdown)() {
			t.Errorf("the clock is %q", b.state("clock").State)
		}
	})
}

var declared = wire.InventoryInstance{Announce: wire.Announce{ID: "declared", Version: "1.0.0", Transport: "nats"}}

// TestStandbyMissesRemoval: the standby misses a removal, and then the leader stops. The answers to the new leader's pings
// reveal the gap, and what was removed does not stay.
func TestStandbyMissesRemoval(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.interval = 30 * time.Second // no heartbeat of the bridge reveals the gap
		r, stop := b.registry(Config{Name: "r"})
		b.leading(r)
		standby, _ := b.registry(Config{Name: "s"})
		one := b.bridge("one", "r1")
		gone, stays := b.ext("gone", "1.0.0", "n1", "get").on(one), b.ext("stays", "1.0.0", "n2", "get").on(one)
		gone.up()
		stays.up()
		one.set(declared)
		b.await("they are up", func() bool {
			return b.is("gone", heartbeat.Ready)() && b.is("stays", heartbeat.Ready)() && b.get(fleet.SpecKey("declared")) != nil &&
				b.status(standby).Instances[heartbeat.Ready] == 2
		})
		time.Sleep(time.Second) // pending messages arrive
		one.sendTo(r, func() { one.remove(wire.InstanceRef{ID: "gone", Instance: "n1"}, declared.Ref()) })
		absent := func() bool {
			return b.get(fleet.SpecKey("gone")) == nil && b.get(fleet.SpecKey("declared")) == nil &&
				b.get(fleet.StateKey("gone")) == nil && b.get(fleet.StateKey("declared")) == nil
		}
		b.await("they are gone", absent)
		stop()
		b.leading(standby)
		time.Sleep(5 * time.Second) // fake time
		if !absent() {
			t.Error("the new leader brings back what was removed")
		}
		if !b.is("stays", heartbeat.Ready)() {
			t.Errorf("the state of what is up: %s", b.state("stays").State)
		}
	})
}

// TestRemovedStaysRemoved: the leader stops before it has written a removal. The next leader has received the same
// message and does not restore the instances from the catalog. Which bridge has had a manifest is not in the catalog; its
// entry is removed when no bridge has listed it for a while.
func TestRemovedStaysRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, stop := b.registry(Config{Name: "r"})
		b.leading(r)
		standby, _ := b.registry(Config{Name: "s"})
		one := b.bridge("one", "r1")
		for _, e := range []*fakeExt{b.ext("gone", "1.0.0", "n1", "get"), b.ext("stays", "1.0.0", "old", "get"), b.ext("stays", "1.0.0", "new", "get")} {
			e.on(one).up()
		}
		one.set(declared)
		b.await("they are up", func() bool {
			return b.is("gone", heartbeat.Ready)() && b.instances("stays") == "new ready, old ready" && b.get(fleet.SpecKey("declared")) != nil &&
				b.status(standby).Instances[heartbeat.Ready] == 3
		})
		time.Sleep(time.Second) // pending messages arrive
		one.sendTo(standby, func() {
			one.remove(wire.InstanceRef{ID: "gone", Instance: "n1"}, wire.InstanceRef{ID: "stays", Instance: "old"}, declared.Ref())
		})
		stop()
		b.leading(standby)
		b.await("the instances are as they should be", func() bool {
			return b.get(fleet.SpecKey("gone")) == nil && b.get(fleet.StateKey("gone")) == nil && b.instances("stays") == "new ready"
		})
		b.awaitFor(3*time.Minute, "the manifest is gone", func() bool {
			return b.get(fleet.SpecKey("declared")) == nil && b.get(fleet.StateKey("declared")) == nil
		})
	})
}

// TestRemovedWhileNoRegistryRan: an extension was removed from its host while no registry ran. It is not shown as
// ready for a grace period.
func TestRemovedWhileNoRegistryRan(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, stop := b.registry(Config{})
		b.leading(r)
		one := b.bridge("one", "r1")
		b.ext("weather", "1.0.0", "n1", "today").on(one).up()
		b.await("it is ready", func() bool { return b.is("weather", heartbeat.Ready)() && one.is(heartbeat.Ready)() })
		stop()
		one.remove(wire.InstanceRef{ID: "weather", Instance: "n1"})
		r, _ = b.registry(Config{})
		b.leading(r)
		b.await("it is forgotten", func() bool { return b.get(fleet.SpecKey("weather")) == nil && b.get(fleet.StateKey("weather")) == nil })
	})
}
