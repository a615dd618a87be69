package registry

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestBeatsThatWait: a bridge dies, and the registry is told so before it has taken in the last beat of what ran there.
// That beat is older than the news, and brings nobody back.
func TestBeatsThatWait(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{Heartbeat: heartbeat.Config{Grace: 100}})
		b.leading(r)
		one := b.bridge("one")
		e := b.ext("weather", "1.0.0", "i", "get").on(one)
		e.up()
		b.await("it is up", func() bool { return b.instances("weather") == "i ready" && one.is(heartbeat.Ready)() })
		one.kill()
		e.silence()
		if err := r.ask(t.Context(), func(l *loop) {
			e.beat(heartbeat.Ready)
			b.flush(b.nc) // it is on its way to the loop, which is here, before anything else
			l.missed(l.bridges["one"], "is gone", time.Now())
		}); err != nil {
			t.Fatal(err)
		}
		b.await("the host is lost", one.is(heartbeat.Lost))
		b.await("its extension is lost", func() bool { return b.instances("weather") == "i lost" })
		time.Sleep(10 * time.Second) // in the bubble
		if got := b.instances("weather"); got != "i lost" {
			t.Errorf("a while later: %s", got)
		}
	})
}
