package registry

import (
	"testing"
	"time"
)

// hold blocks the loop while f runs, and until everything that f published is queued or dropped.
func (b *bed) hold(r *Registry, f func()) {
	b.Helper()
	busy, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() { // ends with release
		done <- r.inLoop(b.Context(), func(*loop) { close(busy); <-release })
	}()
	<-busy
	f()
	b.flush(b.nc)
	b.flush(r.nc) // the messages have to be queued here, or the loop might keep up with the rest
	close(release)
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// TestFloodIsQueued: when a large mesh announces all at once, messages are queued until the registry can process
// them. nats.go's own limit for other kinds of subscription is 65,536 messages.
func TestFloodIsQueued(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	const flood = 80_000
	before := b.status(r).Traffic.Beats
	b.hold(r, func() {
		for range flood {
			b.publish(prefix.Heartbeat("weather"), `{"id":"weather"}`)
		}
	})
	b.await("all are processed", func() bool { return b.status(r).Traffic.Beats == before+flood })
}

// TestDroppedMessages: after dropped messages the registry marks nothing lost for a grace period, and requests
// announcements.
func TestDroppedMessages(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		time.Sleep(requestEvery) // fake time: since the announce request at the start
		requests, err := b.nc.SubscribeSync(prefix.AnnounceRequest())
		if err != nil {
			t.Fatal(err)
		}
		b.flush(b.nc)
		start := time.Now()
		if err := r.inLoop(t.Context(), func(l *loop) {
			if err := l.sub.SetPendingLimits(100, 1<<20); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		b.hold(r, func() {
			for range 5000 {
				b.publish(prefix.Heartbeat("weather"), `{"id":"weather"}`)
			}
		})
		if _, err := requests.NextMsgWithContext(b.timeout()); err != nil {
			t.Errorf("announcements are not requested: %v", err)
		}
		b.await("the gap is recorded", func() bool { return b.status(r).Listening.After(start) })
	})
}
