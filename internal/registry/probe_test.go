package registry

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestSuspectGone: the catalog is correct soon after the first report of a caller, although the owner still sends
// heartbeats, and again when the service is back.
func TestSuspectGone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		e, other := b.ext("weather", "1.0.0", "n1", "get"), b.ext("weather", "1.0.0", "n2", "get")
		for _, e := range []*fakeExt{e, other} {
			e.up()
			e.sendHeartbeats()
		}
		b.await("both are up", func() bool { return len(b.state("weather").Instances) == 2 })
		lost := func() bool { return b.state("weather").Instances[0].State == heartbeat.Lost }

		b.publish(prefix.Suspect("weather"), `{"id":"weather","reason":"no_responders"}`)
		b.await("both are pinged", func() bool { return e.count(&e.pings) == 1 && other.count(&other.pings) == 1 })
		if d := b.state("weather"); d.Instances[0].State != heartbeat.Ready || d.Instances[0].Reason != "" {
			t.Errorf("a false report changed the state: %+v", d)
		}

		e.silence()
		<-time.After(probeInterval)
		start := time.Now()
		b.publish(prefix.Suspect("weather"), `{"id":"weather","reason":"no_responders"}`)
		b.await("it is lost", lost)
		if d := time.Since(start); d < 100*time.Millisecond || d > 200*time.Millisecond { // three pings within 100 ms
			t.Errorf("lost after %v", d)
		}
		seq := b.status(r).Traffic.Beats
		b.await("its owner sends further heartbeats", func() bool { return b.status(r).Traffic.Beats > seq+5 })
		if d := b.state("weather"); !lost() || !d.Available || d.Instances[0].Reason != "no responders" {
			t.Errorf("state: %+v", d)
		}
		e.serve()
		b.await("it is back", func() bool { return !lost() })
	})
}

func TestSuspectHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		e := b.ext("weather", "1.0.0", "n1", "get")
		e.up()
		e.sendHeartbeats()
		b.await("it is up", b.is("weather", heartbeat.Ready))
		hang := func(v bool) {
			e.mu.Lock()
			e.hang = v
			e.mu.Unlock()
		}
		hang(true)
		start := time.Now()
		b.publish(prefix.Suspect("weather"), `{"id":"weather","reason":"timeout"}`)
		b.await("it shows", func() bool {
			d := b.state("weather")
			return d.State == heartbeat.Ready && d.Reason == fleet.NotAnswering
		})
		if d := time.Since(start); d > 500*time.Millisecond {
			t.Errorf("shown after %v", d)
		}
		b.await("it is lost", b.is("weather", heartbeat.Lost))
		if d := time.Since(start); d < 3*time.Second || d > 3500*time.Millisecond { // three pings of 1 s
			t.Errorf("lost after %v", d)
		}
		if n := e.count(&e.pings); n != 3 {
			t.Errorf("pinged %d times", n)
		}
		hang(false)
		b.await("it is back", func() bool { d := b.state("weather"); return d.State == heartbeat.Ready && d.Reason == "" })
	})
}

// TestBridgeGone: when a bridge that has answered pings is gone, its instances are marked lost, long before the grace
// period ends.
func TestBridgeGone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
		b.leading(r)
		one := b.bridge("one", "r1")
		e := b.ext("weather", "1.0.0", "n1", "get").on(one)
		e.up()
		foreign := b.ext("foreign", "1.0.0", "n2", "get") // its bridge has no control subject
		foreign.up()
		b.await("they are up", func() bool { return b.is("weather", heartbeat.Ready)() && b.is("foreign", heartbeat.Ready)() })
		b.await("the bridge has answered", one.is(heartbeat.Ready))
		one.kill()
		start := time.Now()
		b.await("its extension is lost", b.is("weather", heartbeat.Lost))
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("lost after %v", d)
		}
		if d := b.state("weather"); d.Reason != "bridge one is gone" {
			t.Errorf("state: %+v", d)
		}
		if !b.is("foreign", heartbeat.Ready)() {
			t.Error("foreign is lost too")
		}
		e.heartbeat(heartbeat.Ready)
		b.await("it is ready after a heartbeat", b.is("weather", heartbeat.Ready))
	})
}

// TestLostSurvivesHandOver: a standby, which does not ping bridges, becomes the leader a moment after a bridge has
// been replaced by another run. It does not mark the instances of the earlier run ready.
func TestLostSurvivesHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		one, stopOne := b.registry(Config{Name: "one", Heartbeat: liveness.Config{Grace: 100}})
		b.leading(one)
		two, _ := b.registry(Config{Name: "two", Heartbeat: liveness.Config{Grace: 100}})
		f := b.bridge("one", "r1")
		e := b.ext("weather", "1.0.0", "n1", "get").on(f)
		e.up()
		b.await("it is up", func() bool { return b.is("weather", heartbeat.Ready)() && f.is(heartbeat.Ready)() })
		b.waitFor(two, "the standby has received it", func(f *fleet.Fleet) bool { return f.Summary().Instances[heartbeat.Ready] == 1 })
		e.silence()
		f.kill()
		b.await("it is lost", b.is("weather", heartbeat.Lost))
		// The bridge's next run answers under its name, and has not read its manifests yet.
		if _, err := b.nc.Subscribe(prefix.Control("one"), func(m *nats.Msg) {
			_ = m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{"run":"r2","seq":0}}`))
		}); err != nil {
			t.Fatal(err)
		}
		stopOne()
		b.leading(two)
		for range 100 {
			time.Sleep(100 * time.Millisecond) // fake time, in which nothing may change
			if d := b.state("weather"); d.State != heartbeat.Lost {
				t.Fatalf("the new leader calls it %s", d.State)
			}
		}
	})
}

// TestBridgeHangs: a bridge that does not answer without being gone is lost too, a little later.
func TestBridgeHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
		b.leading(r)
		f := b.bridge("one", "r1")
		e := b.ext("weather", "1.0.0", "n1", "get").on(f)
		e.up()
		b.await("it is up", b.is("weather", heartbeat.Ready))
		time.Sleep(3 * time.Second) // fake time: until it has answered
		f.hang(true)
		start := time.Now()
		b.await("its extension is lost", b.is("weather", heartbeat.Lost))
		if d := time.Since(start); d < 4*time.Second || d > 12*time.Second {
			t.Errorf("lost after %v", d)
		}
		f.hang(false)
		e.heartbeat(heartbeat.Ready)
		b.await("it is ready after a heartbeat", b.is("weather", heartbeat.Ready))
	})
}

// TestHoldSurvivesHandOver: a new leader does not mark an instance ready because of its heartbeats if an earlier
// leader found it gone by a probe. It finds by itself when the instance is back.
func TestHoldSurvivesHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		one, stopOne := b.registry(Config{Name: "one"})
		b.leading(one)
		two, _ := b.registry(Config{Name: "two"})
		e := b.ext("weather", "1.0.0", "n1", "get")
		e.up()
		e.sendHeartbeats()
		b.await("it is up", b.is("weather", heartbeat.Ready))
		e.silence()
		b.publish(prefix.Suspect("weather"), `{}`)
		b.await("it is lost", b.is("weather", heartbeat.Lost))
		written := b.get(fleet.StateKey("weather"))
		stopOne()
		b.leading(two)
		time.Sleep(10 * time.Second) // fake time, in which nothing may change
		if now := b.get(fleet.StateKey("weather")); string(now) != string(written) {
			t.Errorf("the new leader wrote\n%s\nover\n%s", now, written)
		}
		e.serve()
		b.await("it is back", b.is("weather", heartbeat.Ready))
	})
}
