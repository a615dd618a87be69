package bridge

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// startTurns limits how many children start at once, so that the starts of a bridge share its processors without each of
// them taking longer than it may. A start that waits without using a processor gives up its turn (startWatch), so a child
// that hangs does not delay the others.
type startTurns struct {
	mu    sync.Mutex
	limit int
	taken int
	queue []*waitingStart // in the order of their turns
}

// waitingStart is a start that waits for its turn.
type waitingStart struct {
	again   bool          // of a child that was ready before
	shown   int           // how many starts come first, as last sent to moved
	moved   chan int      // receives shown after it has halved; capacity 1
	granted chan struct{} // closed at its turn
}

// MaxStarts is how many children a bridge starts at once.
func MaxStarts() int { return max(2, runtime.GOMAXPROCS(0)) }

func newStartTurns(limit int) *startTurns { return &startTurns{limit: limit} }

// take waits for a turn; release ends it. The restart of a child that was ready before (again) comes before first starts,
// because callers are waiting for it, and there are as many further turns for restarts. waiting is called with the number of starts that come first: at the beginning of a
// wait, and each time that it has halved. take returns ctx's cause if ctx ends first.
func (t *startTurns) take(ctx context.Context, again bool, waiting func(before int)) (release func(), err error) {
	release = sync.OnceFunc(t.release)
	w := t.enqueue(again)
	if w == nil {
		return release, nil
	}
	for {
		select {
		case n := <-w.moved:
			waiting(n)
		case <-w.granted:
			return release, nil
		case <-ctx.Done():
			t.leave(w)
			return nil, context.Cause(ctx)
		}
	}
}

// enqueue takes a turn and returns nil, or queues for one.
func (t *startTurns) enqueue(again bool) *waitingStart {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken < t.limit || again && t.taken < 2*t.limit {
		t.taken++
		return nil
	}
	w := &waitingStart{again: again, moved: make(chan int, 1), granted: make(chan struct{})}
	at := len(t.queue)
	if again {
		if first := slices.IndexFunc(t.queue, func(q *waitingStart) bool { return !q.again }); first >= 0 {
			at = first
		}
	}
	t.queue = slices.Insert(t.queue, at, w)
	w.shown = t.taken + at
	w.moved <- w.shown
	return w
}

// leave removes w, or passes on the turn that it was granted at the same moment.
func (t *startTurns) leave(w *waitingStart) {
	t.mu.Lock()
	i := slices.Index(t.queue, w)
	if i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 {
		t.release()
	}
}

// release ends a turn: the next start in the queue gets it.
func (t *startTurns) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 || t.taken > t.limit && !t.queue[0].again {
		t.taken--
		return
	}
	close(t.queue[0].granted)
	t.queue = slices.Delete(t.queue, 0, 1)
	for i, w := range t.queue {
		if before := t.taken + i; before <= w.shown/2 {
			w.shown = before
			select {
			case <-w.moved: // an older number
			default:
			}
			w.moved <- before // cannot block: only this method and enqueue send, with mu held
		}
	}
}
