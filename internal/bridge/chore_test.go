package bridge

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestChore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c chore
		var done atomic.Int64
		gate := make(chan struct{})
		c.ask()
		c.ask()
		synctest.Wait()
		stop := c.begin(t.Context(), func(ctx context.Context) {
			done.Add(1)
			select {
			case <-gate:
			case <-ctx.Done():
			}
		})
		at := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if n := done.Load(); n != want {
				t.Errorf("%s: done %d times, want %d", when, n, want)
			}
		}
		at("asked for twice before the beginning", 1)
		c.ask()
		c.ask()
		c.ask()
		at("asked for while it is done", 1)
		gate <- struct{}{}
		at("behind that", 2)
		gate <- struct{}{}
		at("with nothing to do", 2)
		c.ask()
		at("asked for again", 3)
		c.ask()
		stop()
		c.ask()
		at("stopped in the middle", 3)
		again := c.begin(t.Context(), func(context.Context) { done.Add(1) })
		at("begun anew, with what was left", 4)
		again()
	})
}

// TestChoreIsAskedAsItStops has many ask while it begins and stops: nothing is done outside, and what was asked for
// at last is.
func TestChoreIsAskedAsItStops(t *testing.T) {
	var c chore
	var may atomic.Bool
	var asking sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range 4 {
		asking.Go(func() { // ends with ctx
			for ctx.Err() == nil {
				c.ask()
			}
		})
	}
	for range 500 {
		may.Store(true)
		stop := c.begin(t.Context(), func(context.Context) {
			if !may.Load() {
				t.Error("it is done behind its stop")
			}
		})
		stop()
		may.Store(false)
	}
	cancel()
	asking.Wait()
	done := make(chan struct{}, 1)
	defer c.begin(t.Context(), func(context.Context) { done <- struct{}{} })()
	c.ask()
	<-done
}
