package bridge

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/config"
	state "github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/launch"
	"github.com/extmesh/extmesh/internal/pause"
)

// startWatch decides from readings of what a child's processes have done how long a start may go on. It has no clock and
// no goroutine.
type startWatch struct {
	limit  config.StartLimit
	began  time.Time
	worked time.Time // when the processes were last found to have worked
	last   child.Activity
	at     time.Time // of last
}

const (
	workGap  = 5 * time.Second // without work, until processes count as idle when their time is over
	turnGap  = 3 * time.Second // without work, until a start gives up its turn
	readFast = time.Second     // between two readings, while the start has its turn
	readSlow = 5 * time.Second // afterwards
)

func newStartWatch(limit config.StartLimit, now time.Time) *startWatch {
	return &startWatch{limit: limit, began: now, worked: now, at: now}
}

// observe takes a reading.
func (w *startWatch) observe(now time.Time, a child.Activity) {
	if a.WorkedSince(w.last, now.Sub(w.at)) {
		w.worked = now
	}
	w.last, w.at = a, now
}

// over returns why the start has failed, nil while it may go on. step is the request that was not answered.
func (w *startWatch) over(now time.Time, step string) error {
	took, works := now.Sub(w.began), now.Sub(w.worked) < workGap
	switch {
	case took >= w.limit.Max:
		return fmt.Errorf("it did not answer %s within %s", step, w.limit.Max)
	case took < w.limit.Idle || works:
		return nil
	case took < w.limit.Idle+workGap:
		return fmt.Errorf("it did not answer %s within %s", step, w.limit.Idle)
	}
	return fmt.Errorf("it did not answer %s within %s, and its processes have stopped working", step, took.Round(time.Second))
}

// next returns when the next reading is due.
func (w *startWatch) next(now time.Time, hasTurn bool) time.Time {
	at := now.Add(readSlow)
	if hasTurn {
		at = now.Add(readFast)
	}
	for _, limit := range []time.Duration{w.limit.Idle, w.limit.Max} {
		if end := w.began.Add(limit); end.After(now) && end.Before(at) {
			at = end
		}
	}
	return at
}

// start is one start of a child or a session, from its turn to the end of the handshake.
type start struct {
	activity func() child.Activity // nil: there is no process to watch
	release  func()                // ends its turn; may be called more than once
}

// awaitTurn waits until this child may start.
func (s *instance) awaitTurn(ctx context.Context) (release func(), err error) {
	return s.turns.take(ctx, s.history.wasReady(), func(before int) {
		others := "others"
		if before == 1 {
			others = "other"
		}
		s.showStart(fmt.Sprintf("waiting for %d %s to start", before, others))
	})
}

// startLimit returns how long this start may take. Only the first start of a child may go on because its processes work:
// later ones are known to be faster.
func (r *run) startLimit() config.StartLimit {
	limit := r.inst.workload.limits.start
	if r.start.activity == nil || r.inst.history.wasReady() {
		limit.Max = limit.Idle
	}
	return limit
}

// watchStart watches a start until stop is called. fail is called with the reason if it takes too long.
func (r *run) watchStart(ctx context.Context, recorder *stepRecorder, fail func(error)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	watch := newStartWatch(r.startLimit(), time.Now())
	var wg sync.WaitGroup
	wg.Go(func() { // owned by the caller, and stop waits for it; ends with ctx
		if err := r.awaitStart(ctx, watch, recorder); err != nil {
			fail(err)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// awaitStart reports the progress of a start until ctx ends. It returns an error if the start takes too long.
func (r *run) awaitStart(ctx context.Context, w *startWatch, recorder *stepRecorder) error {
	show := w.began.Add(firstShow)
	hasTurn := true
	for now := w.began; ; now = time.Now() {
		if r.start.activity != nil {
			w.observe(now, r.start.activity())
		}
		if err := w.over(now, recorder.current()); err != nil {
			return err
		}
		if hasTurn && now.Sub(w.worked) >= turnGap {
			hasTurn = false
			r.start.release()
		}
		if !now.Before(show) {
			r.inst.showStart(r.startText(recorder.current(), now.Sub(w.began)))
			show = now.Add(showEvery(now.Sub(w.began)))
		}
		if !pause.For(ctx, time.Until(w.next(now, hasTurn))) {
			return nil
		}
	}
}

// firstShow is when the progress of a start is first reported. Most starts are faster.
const firstShow = 2 * time.Second

// showEvery is how long the next report of a start's progress follows the one after elapsed.
func showEvery(elapsed time.Duration) time.Duration {
	if elapsed < time.Minute {
		return 5 * time.Second
	}
	return 15 * time.Second
}

// startText describes what a start is waiting for.
func (r *run) startText(step string, elapsed time.Duration) string {
	what := "no response to " + step + " yet"
	if launcher := launch.Downloads(r.inst.workload.transport.Command, r.inst.workload.transport.Args); launcher != "" && step == "initialize" {
		what = launcher + " is installing"
	}
	return fmt.Sprintf("starting: %s, %d s", what, int(elapsed.Seconds()))
}

// showStart reports the progress of a start as the reason of the instance's state.
func (s *instance) showStart(text string) {
	if s.mesh != nil { // otherwise it is a test start
		s.apply(state.Progress, text)
	}
}
