// Package supervise runs a function repeatedly, with a backoff between runs and a limit on restarts in a sliding
// window. When the limit is reached the supervisor enters the failed state.
//
// It is a supervisor as in Erlang or suture, reduced to one function, except that it never gives up permanently: in
// the failed state it retries at a slow interval, and Restart always starts a new run.
//
//	s := supervise.New(supervise.Options{
//		Policy: supervise.DefaultPolicy(),
//		Run: func(ctx context.Context, ready func()) error {
//			return child.Run(ctx, spec, func(ctx context.Context, p *child.Process) error {
//				… handshake …
//				ready()
//				… serve until ctx ends …
//			})
//		},
//		Notify: func(e supervise.Event) { log.Info("run ended", "event", e) },
//	})
//	err := s.Run(ctx) // until ctx ends
//
// The package is pure: standard library only, no process, no network. ledger.go makes the decisions as a function of
// the past, the time and the outcome of a run.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// ErrRestart is the cause (context.Cause) of a run's context that Restart cancelled.
var ErrRestart = errors.New("restart requested")

// Policy sets how often and how fast runs follow each other. Zero fields are not replaced by defaults: the zero
// Policy runs once and then enters the failed state. DefaultPolicy has the documented defaults (docs/protocol.md, "A child on
// stdin and stdout").
type Policy struct {
	MaxRestarts   int           // restarts within RestartWindow before failed: N restarts are N+1 runs
	RestartWindow time.Duration // the sliding window in which restarts are counted; until a run has become ready, none leaves it
	FailedRetry   time.Duration // in the failed state, the interval of retries; 0: never
	BaseBackoff   time.Duration // the first delay; it doubles with each restart in a row
	MaxBackoff    time.Duration // the longest delay, before 0-50 % of jitter is added
	ResetAfter    time.Duration // running this long after ready clears the backoff, though not the window
}

// DefaultPolicy returns 5 restarts in 5 minutes, a backoff from 1 s to 60 s that is cleared after 60 s in the ready
// state, and a retry every 5 minutes in the failed state.
func DefaultPolicy() Policy {
	return Policy{
		MaxRestarts:   5,
		RestartWindow: 5 * time.Minute,
		BaseBackoff:   time.Second,
		MaxBackoff:    time.Minute,
		ResetAfter:    time.Minute,
		FailedRetry:   5 * time.Minute,
	}
}

// Event is the end of a run. There is no event for a run that starts or becomes ready: its function runs then.
type Event struct {
	Failed   bool          // the limit of restarts is reached, or the error is permanent
	Err      error         // why the run ended; after Restart it wraps ErrRestart
	Ready    bool          // the run had become ready
	Delay    time.Duration // until the next run; with Failed, 0 means only after Restart
	Restarts int           // restarts in the window, including the next one; with Failed those that led to it
}

// Options configure a Supervisor. Run is required.
type Options struct {
	Policy Policy

	// Run is the supervised function. It returns after it has released its resources, and soon after ctx ends. It
	// calls ready, from any goroutine, once or more often, when it can do its work. A nil error counts as an
	// unexpected end like any other.
	Run func(ctx context.Context, ready func()) error

	// Permanent, if set, reports whether the next run would end with the same error unless somebody changes something
	// first. Such an error leads to the failed state without further restarts.
	Permanent func(err error) bool

	// Notify, if set, receives the end of each run, on the goroutine that called Run. The supervisor waits until it
	// returns. It is not called for a run that ends because Run's context has ended.
	Notify func(Event)

	// Jitter, if set, replaces the random source: it returns numbers in [0, 1).
	Jitter func() float64
}

// A Supervisor runs one function repeatedly. Create it with New, and call Run once.
type Supervisor struct {
	opts Options

	mu     sync.Mutex
	forced bool                    // Restart was called and has not been handled yet
	cancel context.CancelCauseFunc // ends the present phase: a run, or the wait for the next one
}

// New returns a Supervisor. It starts nothing.
func New(o Options) *Supervisor {
	if o.Notify == nil {
		o.Notify = func(Event) {}
	}
	if o.Permanent == nil {
		o.Permanent = func(error) bool { return false }
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return &Supervisor{opts: o}
}

// Restart cancels the present run (with the cause ErrRestart) or the wait for the next one, also in the failed state,
// clears the restart count and the backoff, and starts the next run immediately. It does not block; several calls
// before the next run count as one. Before Run it does nothing.
func (s *Supervisor) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.forced = true
		s.cancel(ErrRestart)
	}
}

// Run starts one run after the other until ctx ends, and returns ctx's cause after the last one has returned. During
// a backoff or in the failed state it returns immediately. In the failed state without a retry it waits for Restart.
func (s *Supervisor) Run(ctx context.Context) error {
	defer s.begin(nil)
	var past ledger
	for ctx.Err() == nil {
		o, err := s.runOnce(ctx)
		if ctx.Err() != nil {
			break
		}
		e := Event{Err: err, Ready: o.ready}
		forced := s.takeForced()
		if forced {
			e.Err = restarted(err)
			s.opts.Notify(e)
		} else {
			o.permanent = s.opts.Permanent(err)
			next := past.next(s.opts.Policy, time.Now(), o, s.opts.Jitter())
			e.Failed, e.Delay, e.Restarts = next.failed, next.delay, len(past.restarts)
			s.opts.Notify(e)
			forced = s.wait(ctx, next)
		}
		if forced {
			past.clear()
		}
	}
	return context.Cause(ctx)
}

// restarted wraps err, the end of a run, in the restart that was requested during it.
func restarted(err error) error {
	if err == nil || errors.Is(err, ErrRestart) {
		return ErrRestart
	}
	return fmt.Errorf("%w (%w)", ErrRestart, err)
}

// runOnce runs the function once.
func (s *Supervisor) runOnce(ctx context.Context) (outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.begin(cancel) // a Restart requested since the last phase is satisfied by this run
	var mu sync.Mutex
	var since time.Time
	err := s.opts.Run(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if since.IsZero() {
			since = time.Now()
		}
	})
	mu.Lock()
	defer mu.Unlock()
	if since.IsZero() {
		return outcome{}, err
	}
	return outcome{ready: true, healthy: time.Since(since)}, err
}

// wait waits for the next run. It returns true if Restart ended the wait.
func (s *Supervisor) wait(ctx context.Context, next step) (forced bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.begin(cancel) {
		return true
	}
	switch {
	case next.delay > 0:
		t := time.NewTimer(next.delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	case next.failed:
		<-ctx.Done()
	}
	return s.takeForced()
}

// begin starts a phase, which cancel ends; nil is the end of Run. It reports whether Restart was called between the
// last phase and this one.
func (s *Supervisor) begin(cancel context.CancelCauseFunc) (forced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel, forced, s.forced = cancel, s.forced, false
	return forced
}

func (s *Supervisor) takeForced() (forced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	forced, s.forced = s.forced, false
	return forced
}
