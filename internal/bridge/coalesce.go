package bridge

import (
	"context"
	"sync"
)

// coalescedTask runs a function on request. Requests made while the function runs are combined into one more run. Its
// goroutine exists only while there is work: a thousand extensions have two tasks each, which are almost always idle.
type coalescedTask struct {
	mu      sync.Mutex
	do      func() // nil before start and after stop
	pending bool
	running bool
	wg      sync.WaitGroup
}

// request schedules a run. It never blocks. A request made before start is served by start.
func (c *coalescedTask) request() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = true
	c.runLocked()
}

// start enables runs of do with a context that ends with ctx. stop waits for the run in progress.
func (c *coalescedTask) start(ctx context.Context, do func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.do = func() {
		if ctx.Err() == nil {
			do(ctx)
		}
	}
	c.runLocked()
	return func() {
		cancel()
		c.mu.Lock()
		c.do = nil
		c.mu.Unlock()
		c.wg.Wait()
	}
}

// runLocked starts the goroutine if there is a pending request and none is running. The caller holds mu.
func (c *coalescedTask) runLocked() {
	if !c.pending || c.running || c.do == nil {
		return
	}
	c.running = true
	c.wg.Go(func() { // owned by start, and stop waits for it; ends when no request is pending
		for do := c.next(); do != nil; do = c.next() {
			do()
		}
	})
}

// clearPending drops the requests made since the current run began. The run calls it before the work that covers them.
func (c *coalescedTask) clearPending() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = false
}

// next returns the function if a request is pending, or nil if the goroutine is to end.
func (c *coalescedTask) next() (do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.pending || c.do == nil {
		c.running = false
		return nil
	}
	c.pending = false
	return c.do
}
