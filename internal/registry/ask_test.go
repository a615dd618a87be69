package registry

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestAsksAgain: a bridge reports, and an instance announces itself, before the registry hears it, and neither hears the
// registry's question. It asks again, since the bridge answers and the instance beats.
func TestAsksAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		one := b.muteBridge("one")
		first := b.ext("weather", "1.0.0", "first", "get").on(one)
		first.up()
		first.keepBeating()
		b.await("the bridge's instance is there", func() bool { return b.instances("weather") == "first ready" })
		second := b.ext("weather", "1.0.0", "second", "get").on(one)
		second.keepBeating()
		b.await("the second is there", func() bool { return b.instances("weather") == "first ready, second ready" })
		if one.doc().Host != "" {
			t.Fatal("the bridge's report was not missed")
		}

		reports, err := b.nc.Subscribe(prefix.AnnounceRequest(), func(*nats.Msg) { one.report() })
		if err != nil {
			t.Fatal(err)
		}
		defer reports.Unsubscribe()
		second.announceOnRequest()
		start := time.Now()
		b.awaitFor(2*requestEvery, "the host is shown", one.is(heartbeat.Ready))
		b.await("the instance has its host", func() bool {
			return slices.ContainsFunc(b.state("weather").Instances, func(i mesh.InstanceState) bool {
				return i.Instance == "second" && i.Host == "host of one"
			})
		})
		if d := time.Since(start); d > requestEvery+2*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestAsksInVain: those who never announce, and never report, are asked a few times and not for ever.
func TestAsksInVain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		var asked atomic.Int64
		sub, err := b.nc.Subscribe(prefix.AnnounceRequest(), func(*nats.Msg) { asked.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Unsubscribe()
		b.flush(b.nc)
		r, _ := b.registry(Config{})
		b.leading(r)
		mute := b.muteBridge("mute")
		first := b.ext("weather", "1.0.0", "first", "get").on(mute)
		first.up()
		first.keepBeating()
		b.ext("weather", "1.0.0", "second", "get").keepBeating()
		time.Sleep(10 * requestEvery) // in the bubble
		got := asked.Load()
		if got < 2 || got > 1+2*requestMost { // the first was the start's
			t.Errorf("asked %d times", got)
		}
		time.Sleep(10 * requestEvery) // in the bubble
		if again := asked.Load(); again != got {
			t.Errorf("asked %d times, and goes on: %d", got, again)
		}
		if got := b.instances("weather"); got != "first ready, second ready" {
			t.Errorf("there are %s", got)
		}
	})
}

// TestAsksInVainForMany: many of whom nothing comes cost no more questions than one, though each beats at another time.
func TestAsksInVainForMany(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		b.ext("weather", "1.0.0", "first", "get").up()
		var asked atomic.Int64
		sub, err := b.nc.Subscribe(prefix.AnnounceRequest(), func(*nats.Msg) { asked.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Unsubscribe()
		mute := make([]*fakeExt, 15)
		for n := range mute {
			mute[n] = b.ext("weather", "1.0.0", fmt.Sprint("mute", n), "get")
		}
		for range 10 * int(requestEvery/time.Second) {
			for _, e := range mute {
				e.beat(heartbeat.Ready)
				time.Sleep(2 * time.Second / time.Duration(len(mute))) // in the bubble
			}
		}
		if got := asked.Load(); got == 0 || got > 2*requestMost {
			t.Errorf("asked %d times", got)
		}
	})
}
