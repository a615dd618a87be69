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
		var c coalescedTask
		var done atomic.Int64
		gate := make(chan struct{})
		c.request()
		c.request()
		synctest.Wait()
		stop := c.start(t.Context(), func(ctx context.Context) {
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
		c.request()
		c.request()
		c.request()
		at("asked for while it is done", 1)
		gate <- struct{}{}
		at("behind that", 2)
		gate <- struct{}{}
		at("with nothing to do", 2)
		c.request()
		at("asked for again", 3)
		c.request()
		stop()
		c.request()
		at("stopped in the middle", 3)
		again := c.start(t.Context(), func(context.Context) { done.Add(1) })
		at("begun anew, with what was left", 4)
		again()
	})
}

// TestChoreIsAskedAsItStops has many ask while it begins and stops: nothing is done outside, and what was asked for
// at last is.
func TestChoreIsAskedAsItStops(t *testing.T) {
	var c coalescedTask
	var may atomic.Bool
	var asking sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range 4 {
		asking.Go(func() { // ends with ctx
			for ctx.Err() == nil {
				c.request()
			}
		})
	}
	for range 500 {
		may.Store(true)
		stop := c.start(t.Context(), func(context.Context) {
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
	defer c.start(t.Context(), func(context.Context) { done <- struct{}{} })()
	c.request()
	<-done
}
