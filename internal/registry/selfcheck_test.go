package registry

import (
	"testing"
	"time"
)

// TestAfterPending: what has to wait for pending messages runs after a heartbeat that was already queued. The answer to
// a ping can arrive before that heartbeat, which must not make an instance ready again that has ended.
func TestAfterPending(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		heartbeats := make(chan uint64, 1)
		if err := r.inLoop(t.Context(), func(l *loop) {
			b.publish(prefix.Heartbeat("weather"), `{"id":"weather"}`)
			b.flush(b.nc) // it is queued for the loop, which runs this function
			l.selfCheck.afterPending(func(time.Time) { heartbeats <- l.fleet.Summary().Counters.Heartbeats })
		}); err != nil {
			t.Fatal(err)
		}
		if n := <-heartbeats; n != 1 {
			t.Errorf("%d heartbeats had been processed", n)
		}
	})
}
