package bridge

import (
	"context"
	"sync"
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

	mu          sync.Mutex
	timer       *time.Timer // nil: nothing is due
	first, last time.Time   // for which runs are requested, of any number of requests
}

// sendAt requests a run at a time. Of several requests the first and the last one count.
func (s *dueSignal) sendAt(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.timer == nil:
		s.first, s.last = at, at
		s.timer = time.AfterFunc(time.Until(at), s.expire) // without effect after the end of the task
	case at.Before(s.first):
		s.first = at
		s.timer.Reset(time.Until(at))
	case at.After(s.last):
		s.last = at
	}
}

func (s *dueSignal) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.send() // after what is over was decided
	if left := time.Until(s.last); left > 0 {
		s.first = s.last
		s.timer = time.AfterFunc(left, s.expire)
	} else {
		s.timer = nil
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
