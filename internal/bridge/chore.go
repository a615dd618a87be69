package bridge

import (
	"context"
	"sync"
)

// chore is something that is done when somebody asks for it, on a goroutine that lives no longer than there is
// something to do: a thousand extensions have two chores each, and next to never anything to do. While it is done,
// further asking is remembered, once.
type chore struct {
	mu    sync.Mutex
	do    func() // nil before begin and after its stop
	asked bool
	busy  bool
	wg    sync.WaitGroup
}

// ask has it done, soon. It never blocks. What is asked for before begin is done then.
func (c *chore) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = true
	c.start()
}

// begin lets it be done, with do, which gets a context that ends with ctx. stop waits for what is under way.
func (c *chore) begin(ctx context.Context, do func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.do = func() {
		if ctx.Err() == nil {
			do(ctx)
		}
	}
	c.start()
	return func() {
		cancel()
		c.mu.Lock()
		c.do = nil
		c.mu.Unlock()
		c.wg.Wait()
	}
}

// start sees to it that somebody does what was asked for. The caller holds mu.
func (c *chore) start() {
	if !c.asked || c.busy || c.do == nil {
		return
	}
	c.busy = true
	c.wg.Go(func() { // owned by begin, whose stop waits; ends when nothing is asked for
		for do := c.next(); do != nil; do = c.next() {
			do()
		}
	})
}

// takenIn says that what was asked for since it began is done with what follows.
func (c *chore) takenIn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = false
}

// next takes up what was asked for, or ends the goroutine that asks it.
func (c *chore) next() (do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked || c.do == nil {
		c.busy = false
		return nil
	}
	c.asked = false
	return c.do
}
