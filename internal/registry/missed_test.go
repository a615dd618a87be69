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
		one := b.bridge("one")
		skills := wire.SkillReport{Bridge: "one", Skills: []wire.SkillEntry{{Dir: "cook", Name: "Cook", Body: "fry"}}}
		there := func() bool { return b.get(fleet.SkillKey("cook")) != nil }
		b.waitFor(standby, "the standby has the skill", func(f *fleet.Fleet) bool {
			one.report()
			b.publish(prefix.Skills("one"), skills)
			return f.Summary().Skills == 1
		})
		b.await("its skill is there", func() bool { return one.is(heartbeat.Ready)() && there() })
		one.kill()
		b.await("its skill is gone", func() bool { return one.is(heartbeat.Lost)() && !there() })
		stop()
		b.leading(standby) // it has received the skill, and has not pinged bridges until now
		time.Sleep(5 * time.Second)
		if there() {
			t.Error("a new leader brings it back")
		}
		b.muteBridge("one")
		one.report() // else it is pinged again within a minute
		b.await("its skill is back", func() bool { return one.is(heartbeat.Ready)() && there() })
	})
}

// TestUnlisted: the shutdown notice of an extension with a removed manifest is lost. The bridge no longer lists it.
func TestUnlisted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		one := b.bridge("one")
		e := b.ext("weather", "1.0.0", "n1", "today").on(one)
		e.up()
		b.await("it is ready", func() bool { return b.is("weather", heartbeat.Ready)() && one.is(heartbeat.Ready)() })
		b.publish(prefix.HostReport("one"), wire.Host{Bridge: "one", Version: "1.0.0", Since: one.since, Extensions: []string{}})
		b.await("the report is in", func() bool { return len(one.doc().Extensions) == 0 })
		if !b.is("weather", heartbeat.Ready)() {
			t.Error("an instance that sends heartbeats is removed because of its bridge's report")
		}
		b.await("it is forgotten", func() bool { return b.get(fleet.SpecKey("weather")) == nil && b.get(fleet.StateKey("weather")) == nil })

		// A shutdown notice without removal: it is the next report that is lost.
		clock := b.ext("clock", "1.0.0", "n1", "now").on(one)
		clock.up()
		b.await("the clock is ready", b.is("clock", heartbeat.Ready))
		b.publish(prefix.Shutdown("clock"), wire.ShutdownNotice{ID: "clock", Instance: "n1", Reason: "shutdown"})
		b.await("the clock is shut down", b.is("clock", heartbeat.Shutdown))
		one.kill()
		b.await("its bridge is gone", one.is(heartbeat.Lost))
		time.Sleep(5 * time.Second) // fake time
		if !b.is("clock", heartbeat.Shutdown)() {
			t.Errorf("the clock is %q", b.state("clock").State)
		}
	})
}

// TestStandbyMissesShutdown: what the leader has removed does not come back with another leader that missed the
// shutdown notice. What is up stays.
func TestStandbyMissesShutdown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, stop := b.registry(Config{Name: "r"})
		b.leading(r)
		standby, _ := b.registry(Config{Name: "s"})
		gone, stays := b.ext("gone", "1.0.0", "n1", "get"), b.ext("stays", "1.0.0", "n2", "get")
		declared := wire.Announce{ID: "declared", Version: "1.0.0"}
		b.await("they are up", func() bool {
			gone.up()
			stays.up()
			b.publish(prefix.Announce("declared"), declared)
			return b.is("gone", heartbeat.Ready)() && b.is("stays", heartbeat.Ready)() && b.get(fleet.SpecKey("declared")) != nil &&
				b.status(standby).Instances[heartbeat.Ready] == 2
		})
		stays.sendHeartbeats()
		time.Sleep(time.Second)                      // pending messages arrive
		err := r.inLoop(b.Context(), func(l *loop) { // this replica alone misses it
			l.fleet.Control("shutdown", "gone", []byte(`{"id":"gone","instance":"n1","reason":"removed"}`), time.Now())
			l.fleet.Control("shutdown", "declared", []byte(`{"id":"declared","reason":"removed"}`), time.Now())
		})
		if err != nil {
			t.Fatal(err)
		}
		absent := func() bool { return b.get(fleet.SpecKey("gone")) == nil && b.get(fleet.SpecKey("declared")) == nil }
		b.await("they are gone", absent)
		time.Sleep(5 * time.Second) // a grace period
		stop()
		b.leading(standby)
		time.Sleep(5 * time.Second) // fake time
		if !absent() || b.get(fleet.StateKey("gone")) != nil || b.get(fleet.StateKey("declared")) != nil {
			t.Error("the new leader brings back what was removed")
		}
		if !b.is("stays", heartbeat.Ready)() {
			t.Errorf("the state of what is up: %s", b.state("stays").State)
		}
	})
}

// TestRemovedStaysRemoved: the leader steps down before it has written a removal. The next leader has received the
// same shutdown notices and does not restore the extension from the catalog.
func TestRemovedStaysRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, stop := b.registry(Config{Name: "r"})
		b.leading(r)
		standby, _ := b.registry(Config{Name: "s"})
		gone, old, stays := b.ext("gone", "1.0.0", "n1", "get"), b.ext("stays", "1.0.0", "old", "get"), b.ext("stays", "1.0.0", "new", "get")
		b.await("they are up", func() bool {
			for _, e := range []*fakeExt{gone, old, stays} {
				e.up()
			}
			b.publish(prefix.Announce("declared"), wire.Announce{ID: "declared", Version: "1.0.0"})
			return b.is("gone", heartbeat.Ready)() && b.instances("stays") == "new ready, old ready" && b.get(fleet.SpecKey("declared")) != nil &&
				b.status(standby).Instances[heartbeat.Ready] == 3
		})
		stays.sendHeartbeats()
		time.Sleep(time.Second)                            // pending messages arrive
		err := standby.inLoop(b.Context(), func(l *loop) { // the leader's writes are not stored
			now := time.Now()
			l.fleet.Control("shutdown", "gone", []byte(`{"id":"gone","instance":"n1","reason":"removed"}`), now)
			l.fleet.Control("shutdown", "stays", []byte(`{"id":"stays","instance":"old","reason":"removed"}`), now)
			l.fleet.Control("shutdown", "declared", []byte(`{"id":"declared","reason":"removed"}`), now)
		})
		if err != nil {
			t.Fatal(err)
		}
		stop()
		b.leading(standby)
		b.await("it is as it should be", func() bool {
			return b.get(fleet.SpecKey("gone")) == nil && b.get(fleet.StateKey("gone")) == nil && b.get(fleet.SpecKey("declared")) == nil &&
				b.get(fleet.StateKey("declared")) == nil && b.instances("stays") == "new ready"
		})
	})
}

// TestUnlistedWhileNoRegistryRan: an extension was removed from its host while no registry ran. It is not shown as
// ready for a grace period.
func TestUnlistedWhileNoRegistryRan(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, stop := b.registry(Config{})
		b.leading(r)
		one := b.bridge("one")
		b.ext("weather", "1.0.0", "n1", "today").on(one).up()
		b.await("it is ready", func() bool { return b.is("weather", heartbeat.Ready)() && one.is(heartbeat.Ready)() })
		stop()
		r, _ = b.registry(Config{})
		b.leading(r)
		b.publish(prefix.HostReport("one"), wire.Host{Bridge: "one", Version: "1.0.0", Since: one.since, Extensions: []string{}})
		b.await("it is forgotten", func() bool { return b.get(fleet.SpecKey("weather")) == nil && b.get(fleet.StateKey("weather")) == nil })
	})
}
