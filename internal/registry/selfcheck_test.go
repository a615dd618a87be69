package registry

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestQueuedHeartbeats: a bridge exits, and the registry finds that before it has processed the last heartbeat of the
// bridge's instance. That older heartbeat does not make the instance ready again.
func TestQueuedHeartbeats(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
		b.leading(r)
		one := b.bridge("one")
		e := b.ext("weather", "1.0.0", "i", "get").on(one)
		e.up()
		b.await("it is up", func() bool { return b.instances("weather") == "i ready" && one.is(heartbeat.Ready)() })
		one.kill()
		e.silence()
		if err := r.inLoop(t.Context(), func(l *loop) {
			e.heartbeat(heartbeat.Ready)
			b.flush(b.nc) // it is queued for the loop, which runs this function
			l.pingFailed(l.bridges["one"], "is gone", time.Now())
		}); err != nil {
			t.Fatal(err)
		}
		b.await("the host is lost", one.is(heartbeat.Lost))
		b.await("its extension is lost", func() bool { return b.instances("weather") == "i lost" })
		time.Sleep(10 * time.Second) // fake time
		if got := b.instances("weather"); got != "i lost" {
			t.Errorf("a while later: %s", got)
		}
	})
}
