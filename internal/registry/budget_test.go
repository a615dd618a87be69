package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// large returns an announcement of about size bytes.
func large(id, instance string, size int) wire.Announce {
	return wire.Announce{ID: id, Version: "1.0.0", Instance: instance, HandshakeHash: "h",
		Capabilities: wire.Capabilities{Channels: []string{strings.Repeat("x", size)}}}
}

// TestBytesPerID: the announcements of one extension are limited in size, and refusing one harms no other extension.
func TestBytesPerID(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	const size = 200 << 10
	for n := range 40 {
		b.publish(prefix.Announce("greedy"), large("greedy", fmt.Sprint("i", n), size))
	}
	b.await("some are refused", func() bool { return b.status(r).Refused["announce"] >= 40-maxPerID/size })
	b.publish(prefix.Announce("greedy"), large("greedy", "i0", size-1)) // replaces an admitted one
	b.ext("weather", "1.0.0", "n", "get").up()
	b.await("another extension is admitted", b.is("weather", heartbeat.Ready))
	if err := r.inLoop(t.Context(), func(l *loop) {
		x := l.exts["greedy"]
		if n := len(x.announcements); n != maxPerID/size || len(x.announcements["i0"].Capabilities.Channels[0]) != size-1 {
			t.Errorf("%d announcements are kept, the first of %d bytes", n, x.announcements["i0"].size)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestEviction: if there is no space left, announcements of instances that never sent a heartbeat are evicted,
// starting with the extension that uses the most memory. An instance that did send one stays.
func TestEviction(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{MemoryLimit: minMemory})
	b.leading(r)
	alive := b.ext("alive", "1.0.0", "n", "get")
	alive.up()
	b.await("it is up", alive.is("alive", heartbeat.Ready))
	const size = 250 << 10
	for id := range 10 { // 40 MB in all; the limit is 32
		before := b.status(r).Traffic.Announces
		for n := range maxPerID / size {
			b.publish(prefix.Announce(fmt.Sprint("silent", id)), large(fmt.Sprint("silent", id), fmt.Sprint("i", n), size))
		}
		b.await("they are handled", func() bool { return b.status(r).Traffic.Announces >= before+maxPerID/size })
	}
	b.await("there was no room", func() (evicted bool) {
		err := r.inLoop(t.Context(), func(l *loop) { evicted = !l.evicted.IsZero() })
		return err == nil && evicted
	})
	late := b.ext("late", "1.0.0", "n", "get")
	b.await("a new extension is admitted", func() bool { late.up(); return late.is("late", heartbeat.Ready)() })
	if err := r.inLoop(t.Context(), func(l *loop) {
		if l.size > l.room || l.exts["alive"].announcements["n"] == nil {
			t.Errorf("%d of %d bytes are kept; the instance that sends heartbeats: %v", l.size, l.room, l.exts["alive"].announcements["n"])
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestInventedBridges: only its own report adds a bridge. Announcements with other names of bridges neither use up
// the limit of bridges nor cause pings.
func TestInventedBridges(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	pings, err := b.nc.SubscribeSync(prefix.Control("*"))
	if err != nil {
		t.Fatal(err)
	}
	e := b.ext("weather", "1.0.0", "n", "get")
	e.up()
	for n := range maxBridges + 10 {
		a := e.a
		a.Bridge = fmt.Sprint("invented", n)
		b.publish(prefix.Announce("weather"), a)
	}
	b.await("all are handled", func() bool { return b.status(r).Traffic.Announces == maxBridges+11 })
	if s := b.status(r); s.Bridges != 0 {
		t.Errorf("there are %d bridges", s.Bridges)
	}
	real := b.bridge("real")
	b.await("a new host is admitted", real.is(heartbeat.Ready))
	for {
		m, err := pings.NextMsg(time.Millisecond)
		if err != nil {
			break
		}
		if m.Subject != prefix.Control("real") {
			t.Errorf("pinged: %s", m.Subject)
		}
	}
}
