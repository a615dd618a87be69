package registry

import (
	"testing"
	"time"
)

// hold keeps the loop busy while f runs, and until what f published waits for it or was dropped.
func (b *bed) hold(r *Registry, f func()) {
	b.Helper()
	busy, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() { // ends with release
		done <- r.ask(b.Context(), func(*loop) { close(busy); <-release })
	}()
	<-busy
	f()
	b.flush(b.nc)
	b.flush(r.nc) // what the server has taken has come to the registry, or the loop might keep up with the rest
	close(release)
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// TestFloodIsHeard: when a large mesh announces all at once, what the registry has no time for yet waits. nats.go's own
// limit is 65,536 messages where one reads them oneself.
func TestFloodIsHeard(t *testing.T) {
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
	b.await("all have been heard", func() bool { return b.status(r).Traffic.Beats == before+flood })
}

// TestDroppedMessages: a registry that missed messages condemns nobody for it, and has everybody announce again.
func TestDroppedMessages(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	asked, err := b.nc.SubscribeSync(prefix.AnnounceRequest())
	if err != nil {
		t.Fatal(err)
	}
	b.flush(b.nc)
	start := time.Now()
	if err := r.ask(t.Context(), func(l *loop) {
		l.requested = time.Time{} // it has just asked, when it started
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
	b.await("it listens anew", func() bool { return b.status(r).Listening.After(start) })
	if _, err := asked.NextMsgWithContext(b.timeout()); err != nil {
		t.Errorf("nobody was asked to announce: %v", err)
	}
}
