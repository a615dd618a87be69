package bridge

import (
	"context"
	"sync"
)

// chore is something that is done when somebody asks for it, on a goroutine that lives no longer than there is
// something to do: a thousand extensions have two chores each, and next to never anything to do. While it is done,
// further asking is remembered, once.
type coalescedTask struct {
	mu      sync.Mutex
	do      func() // nil before begin and after its stop
	pending bool
	running bool
	wg      sync.WaitGroup
}

// ask has it done, soon. It never blocks. What is asked for before begin is done then.
func (c *coalescedTask) request() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = true
	c.runLocked()
}

// begin lets it be done, with do, which gets a context that ends with ctx. stop waits for what is under way.
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

// start sees to it that somebody does what was asked for. The caller holds mu.
func (c *coalescedTask) runLocked() {
	if !c.pending || c.running || c.do == nil {
		return
	}
	c.running = true
	c.wg.Go(func() { // owned by begin, whose stop waits; ends when nothing is asked for
		for do := c.next(); do != nil; do = c.next() {
			do()
		}
	})
}

// takenIn says that what was asked for since it began is done with what follows.
func (c *coalescedTask) clearPending() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = false
}

// next takes up what was asked for, or ends the goroutine that asks it.
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
