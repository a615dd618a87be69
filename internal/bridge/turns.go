package bridge

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// startTurns limits how many children start at once, so that the starts of a bridge share its processors without each of
// them taking longer than it may. A start that waits without using a processor gives up its turn (startWatch), so a child
// that hangs does not delay the others. Restarts of children that were ready before have turns of their own, because callers
// are waiting for these children.
type startTurns struct{ first, again turns }

// turns go to starts in the order in which they began to wait.
type turns struct {
	taken   semaphore
	waiting atomic.Int64 // starts that wait for a turn
}

// MaxStarts is how many children a bridge starts at once.
func MaxStarts() int { return max(2, runtime.GOMAXPROCS(0)) }

func newStartTurns(limit int) *startTurns {
	return &startTurns{first: turns{taken: make(semaphore, limit)}, again: turns{taken: make(semaphore, limit)}}
}

// take waits for a turn, of restarts if again is true; release ends it. If take has to wait, it first calls waiting with the
// number of starts that come before this one. It returns ctx's cause if ctx ends first.
func (t *startTurns) take(ctx context.Context, again bool, waiting func(before int)) (release func(), err error) {
	if again {
		return t.again.take(ctx, waiting)
	}
	return t.first.take(ctx, waiting)
}

func (t *turns) take(ctx context.Context, waiting func(before int)) (release func(), err error) {
	release = sync.OnceFunc(t.taken.release)
	if t.taken.tryAcquire() {
		return release, nil
	}
	ahead := t.waiting.Add(1) - 1
	defer t.waiting.Add(-1)
	waiting(cap(t.taken) + int(ahead))
	select {
	case t.taken <- struct{}{}:
		return release, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
