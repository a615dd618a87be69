package bridge

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestCoalescedTask(t *testing.T) {
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
		at("requested twice before the start", 1)
		c.request()
		c.request()
		c.request()
		at("requested during a run", 1)
		gate <- struct{}{}
		at("after that run", 2)
		gate <- struct{}{}
		at("without a request", 2)
		c.request()
		at("requested again", 3)
		c.request()
		stop()
		c.request()
		at("stopped during a run", 3)
		again := c.start(t.Context(), func(context.Context) { done.Add(1) })
		at("started again with a pending request", 4)
		again()
	})
}

// TestRequestsDuringStop requests runs while the task starts and stops: the function runs only between start and stop, and
// a pending request is not lost.
func TestRequestsDuringStop(t *testing.T) {
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
				t.Error("the function runs after stop")
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
