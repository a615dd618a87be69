package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// BenchmarkSweep measures the work of one sweep, which blocks the registry.
func BenchmarkSweep(b *testing.B) {
	l := largeFleet(100_000)
	for b.Loop() {
		l.natives.sweepExtensions(time.Now())
	}
}

func largeFleet(size int) *Fleet {
	l := New(Config{Prefix: "ext", Room: 1 << 40}, testCatalog{})
	now := time.Now()
	for n := range size {
		x := newExtension(fmt.Sprintf("ext%06d", n), now)
		l.exts[x.id] = x
		a := &announced{Announce: wire.Announce{ID: x.id, Version: "1.0.0", Instance: "one", HandshakeHash: "hash"}, at: now, size: 500}
		x.announcements["one"] = a
		x.tools = &handshake{done: true, size: 1300}
		x.handshakes[a.handshakeKey()] = x.tools
		l.account(x, x.size())
		l.mon.Declare(x.id, now)
		l.mon.Observe(heartbeat.Message{ID: x.id, Instance: "one", Seq: 1, State: heartbeat.Ready}, now)
	}
	return l
}

// TestSweep: a sweep removes what is no longer used, and corrects the counted memory.
func TestSweep(t *testing.T) {
	l := largeFleet(100)
	old := l.exts["ext000050"]
	old.requests["gone"] = new(announceRequests) // of an instance that is no longer in the monitor
	old.announcements["two"] = &announced{Announce: wire.Announce{ID: old.id, Version: "1.0.0", Instance: "two", HandshakeHash: "hash"},
		at: time.Now().Add(-maxUnused - time.Second), size: 500} // it never sent a heartbeat
	l.setLocation(old, "two", &location{bridge: "b"})
	l.account(old, 100_000) // for example, counted twice
	l.natives.sweepExtensions(time.Now())
	if want := 100 * (extensionRoom + 500 + 1300); l.size != want {
		t.Errorf("%d bytes counted, %d stored", l.size, want)
	}
	if old.announcements["two"] != nil || old.locations["two"] != nil || len(l.instancesByBridge) != 0 || len(old.requests) != 0 {
		t.Errorf("what never sent a heartbeat stays: %v, %v, %v, %v", old.announcements, old.locations, l.instancesByBridge, old.requests)
	}
}

// TestAccounting: what is removed is no longer counted.
func TestAccounting(t *testing.T) {
	l := largeFleet(1)
	x := l.exts["ext000000"]
	for n := range 10 { // one after another, each with other tools
		a := &announced{Announce: wire.Announce{ID: x.id, Version: "1.0.0", Instance: "one", HandshakeHash: fmt.Sprint(n)}, at: time.Now(), size: 100}
		l.natives.addAnnouncement(x, a)
		s := &handshake{done: true, size: 1000}
		x.handshakes[a.handshakeKey()] = s
		l.account(x, s.size)
		x.tools = s
		if l.size != x.size() || l.size > extensionRoom+100+2*1300 {
			t.Fatalf("%d bytes counted, %d stored", l.size, x.size())
		}
	}
	if l.drop(x); l.size != 0 {
		t.Errorf("%d bytes counted, and nothing stored", l.size)
	}
}

// TestForgottenInSpiteOfElections: an extension that is silent is removed after a day, also if its registry becomes the leader
// again in between.
func TestForgottenInSpiteOfElections(t *testing.T) {
	f := testFleet(t)
	f.announce(wire.Announce{ID: "x", Version: "1.0.0", Instance: "n"})
	f.send("heartbeat", "x", `{"id":"x","instance":"n"}`)
	for second := range 25 * 3600 {
		f.at = f.at.Add(time.Second)
		if second%36_000 == 0 {
			f.Elected(f.at)
		}
		f.Verified(f.at, true, f.at)
		f.Tick(f.at)
		f.settle()
	}
	if f.exts["x"] != nil {
		health, _ := f.mon.Extension("x")
		t.Errorf("after 25 hours: %+v", health)
	}
}

// TestUnannouncedForLong: a service that is never announced, and sends heartbeats for hours, causes a few requests only.
func TestUnannouncedForLong(t *testing.T) {
	f := testFleet(t)
	requests := 0
	for range 120 {
		f.at = f.at.Add(time.Minute)
		f.send("heartbeat", "a.b", `{"id":"a.b","instance":"n"}`)
		f.natives.sweepUnannounced(f.at)
		for _, e := range f.pending {
			if _, ok := e.(RequestAnnouncements); ok {
				requests++
			}
		}
		f.pending = nil
	}
	if requests == 0 || requests > 3 {
		t.Errorf("%d requests, want at most 3", requests)
	}
}

// TestBridgesAreForgotten: bridges that are gone are removed, also if extensions never are.
func TestBridgesAreForgotten(t *testing.T) {
	f := testFleet(t)
	f.cfg.Heartbeat.ForgetAfter = -1
	f.send("host", "b", string(encode(t, message(wire.InventoryFull, 1))))
	if f.bridges.byName["b"] == nil {
		t.Fatal(f.refused)
	}
	f.bridges.sweepBridges(f.at.Add(25 * time.Hour))
	if len(f.bridges.byName) != 0 {
		t.Error("it stays")
	}
}

// TestAnnounceRequestsAreForgotten: the announce requests of an instance are removed when the monitor drops the
// instance to make room for another one.
func TestAnnounceRequestsAreForgotten(t *testing.T) {
	l := largeFleet(1)
	x, now := l.exts["ext000000"], time.Now()
	l.mon = liveness.NewMonitor(liveness.Config{MaxPerID: 10})
	l.mon.Declare(x.id, now)
	l.natives.lastRequest = now
	for n := range 5 * maxAnnouncements {
		b := heartbeat.Message{ID: x.id, Instance: fmt.Sprintf("i%d", n), Seq: 1, State: heartbeat.Shutdown}
		l.mon.Observe(b, now)
		l.natives.checkAnnouncement(x, &b, now)
	}
	if n := len(x.requests); n > 2*maxAnnouncements || n == 0 {
		t.Errorf("%d instances are remembered", n)
	}
}
