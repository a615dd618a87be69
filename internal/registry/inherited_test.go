package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestInherited: a registry that starts to lead pings the instances that are ready in the catalog once. Those that
// have ended meanwhile are found within two seconds, long before the grace period ends.
func TestInherited(t *testing.T) {
	for _, standby := range []bool{false, true} {
		t.Run(fmt.Sprintf("standby %v", standby), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bed) {
				slow := Config{Heartbeat: liveness.Config{Grace: 100}}
				r, stop := b.registry(slow)
				b.leading(r)
				var next *Registry
				if standby {
					next, _ = b.registry(slow)
				}
				var all []*fakeExt
				for n := range 7 {
					all = append(all, b.ext("weather", "1.0.0", fmt.Sprint("n", n), "get"))
				}
				ready := func(n int) func() bool {
					return func() bool { return strings.Count(b.instances("weather"), "ready") == n }
				}
				b.await("all are ready", func() bool {
					for _, e := range all {
						e.up()
					}
					return ready(7)() && (next == nil || b.status(next).Instances[heartbeat.Ready] == 7)
				})
				for _, e := range all[:5] {
					e.silence() // before stop: a standby pings them as soon as it leads
				}
				stop()
				if next == nil {
					next, _ = b.registry(slow)
				}
				b.leading(next)
				start := time.Now()
				b.await("the five that ended are lost", ready(2))
				if d := time.Since(start); d > 2*time.Second {
					t.Errorf("it took %v", d)
				}
				time.Sleep(5 * time.Second) // fake time
				if !ready(2)() {
					t.Errorf("later: %s", b.instances("weather"))
				}
			})
		})
	}
}

// TestInheritedFromEarlierRun: a bridge restarted while no registry ran. After its inventory the instances of its
// earlier run are removed whatever their state, and so is an extension that was removed meanwhile.
func TestInheritedFromEarlierRun(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		slow := Config{Heartbeat: liveness.Config{Grace: 100}}
		r, stop := b.registry(slow)
		b.leading(r)
		one := b.bridge("one", "r1")
		old, starting, removed := b.ext("weather", "1.0.0", "old", "get").on(one), b.ext("weather", "1.0.0", "starting", "get").on(one),
			b.ext("removed", "1.0.0", "r", "get").on(one)
		old.up()
		starting.heartbeat(heartbeat.Restarting)
		removed.up()
		b.await("they are shown", func() bool {
			return b.instances("weather") == "old ready, starting restarting" && b.instances("removed") == "r ready" && one.is(heartbeat.Ready)()
		})
		stop()
		for _, e := range []*fakeExt{old, starting, removed} {
			e.silence()
		}
		one.kill()
		r, _ = b.registry(slow)
		b.leading(r)
		start := time.Now()
		b.bridge("one", "r2", b.ext("weather", "1.0.0", "new", "get").entry("one", heartbeat.Ready))
		b.await("only the new run is shown", func() bool {
			return b.instances("weather") == "new ready" && b.get(fleet.SpecKey("removed")) == nil && b.get(fleet.StateKey("removed")) == nil
		})
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestRemovedWhileItsBridgeRestarts: a manifest is removed while its bridge does not run. The extension is removed
// because the bridge's next inventory does not list it, whether the bridge was stopped or killed.
func TestRemovedWhileItsBridgeRestarts(t *testing.T) {
	for _, inOrder := range []bool{false, true} {
		t.Run(fmt.Sprintf("in order %v", inOrder), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bed) {
				r, _ := b.registry(Config{})
				b.leading(r)
				one := b.bridge("one", "r1")
				e := b.ext("removed", "1.0.0", "r", "get").on(one)
				e.up()
				b.await("it is ready", func() bool { return b.is("removed", heartbeat.Ready)() && one.is(heartbeat.Ready)() })
				e.silence()
				want := heartbeat.Lost
				if inOrder {
					want = heartbeat.Shutdown
					e.heartbeat(want)
				}
				one.kill()
				b.await("the bridge and its extension are gone", func() bool { return one.is(heartbeat.Lost)() && b.is("removed", want)() })
				b.bridge("one", "r2")
				b.await("it is forgotten", func() bool { return b.get(fleet.SpecKey("removed")) == nil && b.get(fleet.StateKey("removed")) == nil })
			})
		})
	}
}

// TestWithdrawnWhileNoneLeads: the manifest of a service is removed while no registry leads. The service, which has no
// instance, is removed from the catalog as soon as every bridge has reported.
func TestWithdrawnWhileNoneLeads(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, stop := b.registry(Config{})
		b.leading(r)
		one, two := b.bridge("one", "r1", declared), b.bridge("two", "r1")
		b.await("it is shown", func() bool {
			return b.is(declared.ID, heartbeat.Lost)() && one.is(heartbeat.Ready)() && two.is(heartbeat.Ready)()
		})
		stop()
		one.remove(declared.Ref())
		r, _ = b.registry(Config{})
		b.leading(r)
		start := time.Now()
		b.await("it is removed", func() bool {
			return b.get(fleet.SpecKey(declared.ID)) == nil && b.get(fleet.StateKey(declared.ID)) == nil
		})
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}
