package child

import (
	"errors"
	"testing"
	"time"
)

// TestGuardKilledEarly: a guard that somebody kills before it is at work is told from a program that is no guard, and
// another one is started.
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
		g.reap() // it was quicker than the kill
	}
	done := make(chan struct{})
	go func() { g.watch(false); close(done) }() // ends with quit
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for up := false; !up; <-tick.C {
		g.mu.Lock()
		up = g.pipe != nil // started; at work or on its way
		g.mu.Unlock()
	}
	close(g.quit)
	g.dismiss()
	<-done
}
