package registry

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestRepeatedAnnounceRequest: the registry misses an instance's announcement, and the instance misses the announce
// request. The request is repeated, because the instance sends heartbeats.
func TestRepeatedAnnounceRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		first := b.ext("weather", "1.0.0", "first", "get")
		first.up()
		first.sendHeartbeats()
		b.await("the first is there", func() bool { return b.instances("weather") == "first ready" })
		second := b.ext("weather", "1.0.0", "second", "get")
		second.sendHeartbeats()
		b.await("the second is there", func() bool { return b.instances("weather") == "first ready, second ready" })
		second.announceOnRequest()
		start := time.Now()
		b.awaitFor(2*requestEvery, "the instance has its host", func() bool {
			return slices.ContainsFunc(b.state("weather").Instances, func(i wire.InstanceState) bool {
				return i.Instance == "second" && i.Host == second.a.Host
			})
		})
		if d := time.Since(start); d > requestEvery+2*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestAnnounceRequestsAreLimited: an instance that never announces itself causes only a few announce requests.
func TestAnnounceRequestsAreLimited(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		var count atomic.Int64
		sub, err := b.nc.Subscribe(prefix.AnnounceRequest(), func(*nats.Msg) { count.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Unsubscribe()
		b.flush(b.nc)
		r, _ := b.registry(Config{})
		b.leading(r)
		first := b.ext("weather", "1.0.0", "first", "get")
		first.up()
		first.sendHeartbeats()
		b.ext("weather", "1.0.0", "second", "get").sendHeartbeats()
		time.Sleep(10 * requestEvery) // fake time
		got := count.Load()
		if got < 2 || got > 1+maxRequests { // the first one was sent at the start
			t.Errorf("%d announce requests", got)
		}
		time.Sleep(10 * requestEvery) // fake time
		if again := count.Load(); again != got {
			t.Errorf("%d announce requests, later %d", got, again)
		}
		if got := b.instances("weather"); got != "first ready, second ready" {
			t.Errorf("the extensions are %s", got)
		}
	})
}

// TestAnnounceRequestsOfManyAreLimited: many instances that never answer cause no more announce requests than one,
// even if their heartbeats are spread over time.
func TestAnnounceRequestsOfManyAreLimited(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		b.ext("weather", "1.0.0", "first", "get").up()
		var count atomic.Int64
		sub, err := b.nc.Subscribe(prefix.AnnounceRequest(), func(*nats.Msg) { count.Add(1) })
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
				e.heartbeat(heartbeat.Ready)
				time.Sleep(2 * time.Second / time.Duration(len(mute))) // fake time
			}
		}
		if got := count.Load(); got == 0 || got > 2*maxRequests {
			t.Errorf("%d announce requests", got)
		}
	})
}
