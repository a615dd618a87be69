package registry

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func (b *bed) bucket() *bucket {
	return &bucket{nc: b.nc, js: natstest.JetStream(b, b.nc), prefix: prefix}
}

// TestHandOver: after a clean stop the standby leads within milliseconds, writes only what changed, and repeats no
// handshake.
func TestHandOver(t *testing.T) { inBubble(t, testHandOver) }

func testHandOver(t *testing.T, b *bed) {
	one, stopOne := b.registry(Config{Name: "one"})
	b.leading(one)
	two, _ := b.registry(Config{Name: "two"})
	e := b.ext("weather", "1.0.0", "n1", "get")
	e.announceOnRequest() // until it has, the new leader pings it on the shared subject, on which it does not answer
	e.up()
	e.sendHeartbeats()
	b.await("it is up, with its tool", func() bool {
		s, _ := b.spec("weather")
		return len(s.Tools) == 1 && b.is("weather", heartbeat.Ready)()
	})
	b.await("the standby has seen it", func() bool {
		s := b.status(two)
		return s.Revision >= 2 && s.Revision == b.status(one).Revision && len(s.Replicas) == 2
	})
	if s := b.status(two); s.Leading || s.Leader != "one" || len(s.Replicas) != 2 {
		t.Errorf("standby: %+v", s)
	}
	written := func() (at [2]time.Time) {
		for i, key := range []string{fleet.SpecKey("weather"), fleet.StateKey("weather")} {
			r, ok, err := b.bucket().newest(b.timeout(), key)
			if err != nil || !ok {
				t.Fatalf("%s: %v", key, err)
			}
			at[i] = r.At.At()
		}
		return at
	}
	before := written()
	start := time.Now()
	stopOne()
	stopped := time.Now()
	b.leading(two)
	t.Logf("the leader stopped in %v, the next led %v later", stopped.Sub(start), time.Since(stopped))
	b.publish(prefix.Announce("mail"), wire.Announce{ID: "mail", Version: "1.0.0", Bridge: "b1", Transport: "nats"})
	b.await("it writes", func() bool { _, ok := b.spec("mail"); return ok && b.is("mail", heartbeat.Lost)() })
	if after := written(); after != before {
		t.Errorf("the extension was rewritten: %v, before %v", after, before)
	}
	if n := e.count(&e.handshakes); n != 1 {
		t.Errorf("%d handshakes", n)
	}
}

// TestCrash: a leader that crashes is replaced when its lease has expired, and its late batch is refused.
func TestCrash(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		one, _ := b.registry(Config{Name: "one", LeaseTTL: 2 * time.Second})
		b.leading(one)
		two, _ := b.registry(Config{Name: "two", LeaseTTL: 2 * time.Second})
		b.await("the standby follows", func() bool { return b.status(two).Leader == "one" })
		epoch := b.status(one).Epoch

		one.nc.Close() // like a crash for the others: the lease is not released
		start := time.Now()
		b.leading(two)
		t.Logf("took over after %v", time.Since(start))

		_, err := b.bucket().commit(t.Context(), epoch, []write{{key: "spec.stale", value: []byte("{}")}, {key: "state.stale", value: []byte("{}")}})
		if !errors.Is(err, errFenced) {
			t.Errorf("the old leader's batch: %v", err)
		}
		t.Logf("refused: %v", err)
		if b.get("spec.stale") != nil || b.get("state.stale") != nil {
			t.Error("a fenced batch was stored")
		}
	})
}

// TestFencedLeaderStepsDown: a leader with an outdated epoch steps down at its next write, is elected again, and
// repeats the write.
func TestFencedLeaderStepsDown(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	epoch := b.status(r).Epoch
	if _, err := b.bucket().js.Publish(t.Context(), b.bucket().subject(wire.KeyEpoch), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	b.publish(prefix.Announce("mail"), wire.Announce{ID: "mail", Version: "1.0.0", Bridge: "b1", Transport: "nats"})
	b.await("it writes under a new epoch", func() bool { _, ok := b.spec("mail"); return ok && b.status(r).Epoch > epoch })
}

// TestRebuild: a damaged or deleted bucket is rebuilt from memory or from announcements.
func TestRebuild(t *testing.T) {
	t.Parallel()
	for name, ruin := range map[string]func(b *bed, stop func()){
		"a key deleted by hand": func(b *bed, _ func()) {
			if _, err := b.bucket().js.PublishMsg(b.Context(), kvDelete(fleet.SpecKey("weather"))); err != nil {
				b.Fatal(err)
			}
		},
		"bucket purged": func(b *bed, _ func()) {
			s, err := b.bucket().js.Stream(b.Context(), "KV_ext_catalog")
			if err == nil {
				err = s.Purge(b.Context())
			}
			if err != nil {
				b.Fatal(err)
			}
		},
		"a spec purged, and the lease not": func(b *bed, _ func()) {
			s, err := b.bucket().js.Stream(b.Context(), "KV_ext_catalog")
			if err == nil {
				err = s.Purge(b.Context(), jetstream.WithPurgeSubject(b.bucket().subject(fleet.SpecKey("weather"))))
			}
			if err != nil {
				b.Fatal(err)
			}
		},
		"bucket deleted": func(b *bed, _ func()) {
			if err := b.bucket().js.DeleteStream(b.Context(), "KV_ext_catalog"); err != nil {
				b.Fatal(err)
			}
		},
		"bucket deleted between two registries": func(b *bed, stop func()) {
			stop()
			if err := b.bucket().js.DeleteStream(b.Context(), "KV_ext_catalog"); err != nil {
				b.Fatal(err)
			}
			b.registry(Config{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			r, stop := b.registry(Config{})
			b.leading(r)
			e := b.ext("weather", "1.0.0", "n1", "get")
			e.up()
			e.sendHeartbeats()
			e.announceOnRequest()
			good := func() bool {
				s, _ := b.spec("weather")
				return len(s.Tools) == 1 && b.state("weather").State == heartbeat.Ready
			}
			// Each step deletes the spec. The deletion may be visible or not: the registry may be faster.
			written := func() (at time.Time) {
				if r, ok, err := b.bucket().newest(b.Context(), fleet.SpecKey("weather")); err == nil && ok && !r.Deleted() {
					at = r.At.At()
				}
				return at
			}
			b.await("it is up", good)
			var before time.Time
			b.await("the spec is read", func() bool { before = written(); return !before.IsZero() })
			start := time.Now()
			ruin(b, stop)
			b.await("the spec is rewritten", func() bool { at := written(); return !at.IsZero() && !at.Equal(before) })
			b.await("it is up again", good)
			t.Logf("rebuilt in %v", time.Since(start))
		})
	}
}

// TestRestart: a registry that restarts with a full bucket writes only what has changed, and marks instances lost
// only after a full grace period.
func TestRestart(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		one, stop := b.registry(Config{})
		b.leading(one)
		e, gone := b.ext("weather", "1.0.0", "n1", "get"), b.ext("mail", "1.0.0", "n2", "send")
		for _, e := range []*fakeExt{e, gone} {
			e.up()
		}
		e.sendHeartbeats()
		b1 := b.bridge("b1", "r1")
		b1.addSkill(wire.SkillEntry{Name: "Cook", Dir: "cook", Body: "boil"})
		b.await("all is there", func() bool {
			return b.is("weather", heartbeat.Ready)() && b.is("mail", heartbeat.Ready)() && b1.is(heartbeat.Ready)() && b.get("skill.cook") != nil
		})
		stop()
		start := time.Now()
		two, _ := b.registry(Config{Heartbeat: liveness.Config{Interval: time.Second}})
		b.leading(two)
		b.await("the silent one is lost", b.is("mail", heartbeat.Lost))
		if d := time.Since(start); d < 3*time.Second { // 3 × the interval
			t.Errorf("marked lost after %v", d)
		}
		b.await("the write is acknowledged", func() bool { return b.status(two).Traffic.Writes > 0 })
		if n := b.status(two).Traffic.Writes; n != 1 {
			t.Errorf("%d keys were written for one change", n)
		}
		if n := e.count(&e.handshakes); n != 1 {
			t.Errorf("%d handshakes", n)
		}
	})
}

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestPaused: after a pause of a minute the registry never marks an instance lost that sends heartbeats, and others
// only after a full grace period.
func TestPaused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		e, alive := b.ext("weather", "1.0.0", "n1", "get"), b.ext("mail", "1.0.0", "n2", "send")
		e.up()
		alive.up()
		alive.sendHeartbeats()
		b.await("they are up", func() bool { return b.is("weather", heartbeat.Ready)() && b.is("mail", heartbeat.Ready)() })
		if err := r.inLoop(t.Context(), func(*loop) { <-time.After(time.Minute) }); err != nil {
			t.Fatal(err)
		}
		woke := time.Now()
		b.await("it is lost", func() bool {
			if s := b.state("mail").State; s != heartbeat.Ready {
				t.Fatalf("the instance with heartbeats is %s %v after the pause", s, time.Since(woke))
			}
			return b.is("weather", heartbeat.Lost)()
		})
		if d := time.Since(woke); d < 2500*time.Millisecond || d > 6*time.Second {
			t.Errorf("marked lost %v after the pause", d)
		}
	})
}

// TestReconnect: the server stops and restarts. No instance is marked lost because of it, and missed announcements
// are requested.
func TestReconnect(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		e := b.ext("weather", "1.0.0", "n1", "get")
		e.up()
		b.await("it is up", b.is("weather", heartbeat.Ready))
		b.stop()
		<-time.After(4 * time.Second)
		b.start(true)
		back := time.Now()
		b.await("it leads again", func() bool { return b.status(r).Leading })
		e.serve()
		b.await("it is lost", b.is("weather", heartbeat.Lost))
		if d := time.Since(back); d < 2500*time.Millisecond {
			t.Errorf("marked lost %v after the reconnect", d)
		}
	})
}

// TestJetStreamLater: without JetStream heartbeats are processed and status shows the problem; with it, everything is
// written.
func TestJetStreamLater(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.stop()
		b.start(false)
		r, _ := b.registry(Config{})
		e := b.ext("weather", "1.0.0", "n1", "get")
		e.up()
		e.sendHeartbeats()
		b.await("it waits", func() bool { s := b.status(r); return s.JetStream != "ok" && s.Instances[heartbeat.Ready] == 1 })
		if err := r.Ready(t.Context()); err == nil {
			t.Error("it is ready")
		}
		b.stop()
		b.start(true)
		e.silence()
		e.serve()
		b.await("the spec has its tool", func() bool { s, _ := b.spec("weather"); return len(s.Tools) == 1 })
		b.await("it is ready", func() bool { return r.Ready(t.Context()) == nil })
	})
}

// TestEpochNamesCatalog: followers receive the catalog's id in the epoch.
func TestEpochNamesCatalog(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{Name: "one"})
	b.leading(r)
	var h holder
	if err := json.Unmarshal(b.get(wire.KeyEpoch), &h); err != nil {
		t.Fatal(err)
	}
	if id := b.status(r).CatalogID; h.CatalogID != id || h.Name != "one" || id == "" {
		t.Errorf("epoch: %+v, catalog %q", h, id)
	}
}

// TestCreatedAgainLater: a bucket that was deleted is created again after a second, when NATS has completed the deletion.
func TestCreatedAgainLater(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		js := b.bucket().js
		if err := js.DeleteStream(t.Context(), "KV_ext_catalog"); err != nil {
			t.Fatal(err)
		}
		deleted := time.Now()
		b.await("the bucket is there again", func() bool { _, err := js.Stream(t.Context(), "KV_ext_catalog"); return err == nil })
		if took := time.Since(deleted); took < recreateAfter {
			t.Errorf("it was created after %s", took)
		}
		b.leading(r)
	})
}
