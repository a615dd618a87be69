package child

import (
	"errors"
	"testing"
	"time"
)

// TestGuardKilledEarly: if a guard is killed before it is ready, another one is started; that differs from a program that
// does not call MaybeGuard.
func TestGuardKilledEarly(t *testing.T) {
	g := &guard{quit: make(chan struct{})}
	for {
		ready, err := g.start()
		if err != nil {
			t.Fatal(err)
		}
		if err := g.proc.Kill(); err != nil {
			t.Fatal(err)
		}
		if err = g.await(ready); errors.Is(err, errGuardKilled) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		g.reap() // it was ready before the kill
	}
	done := make(chan struct{})
	go func() { g.watch(false); close(done) }() // ends with quit
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for up := false; !up; <-tick.C {
		g.mu.Lock()
		up = g.pipe != nil // started, maybe not ready
		g.mu.Unlock()
	}
	close(g.quit)
	g.dismiss()
	<-done
}
