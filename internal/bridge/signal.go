package bridge

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// signal requests runs of a task. Requests that arrive before the task begins count as one. Create it with newSignal.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

// send requests a run. It never blocks.
func (s signal) send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// clear drops a request. The task calls it before the work that covers all requests made so far.
func (s signal) clear() {
	select {
	case <-s:
	default:
	}
}

// dueSignal is a signal that can be sent later.
type dueSignal struct {
	signal
	due atomic.Bool
}

// sendAt requests a run at a time, once: until then further calls have no effect.
func (s *dueSignal) sendAt(at time.Time) {
	if s.due.CompareAndSwap(false, true) {
		time.AfterFunc(time.Until(at), func() { // without effect after the end of the task
			s.due.Store(false)
			s.send()
		})
	}
}

// start runs do for each request, one run after the other. stop ends the context of do, and waits for the run in progress.
func (s signal) start(ctx context.Context, do func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { // owned by the caller, and stop waits for it; ends with ctx
		for {
			select {
			case <-ctx.Done():
				return
			case <-s:
				do(ctx)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
