// Package supervise runs a func again and again: with a backoff between its lives and a budget of restarts
// in a sliding window, after which it rests in failed.
//
// It is like a supervisor in Erlang or suture, cut down to one function under one supervisor, except that
// it never gives up for good: out of failed it retries once in a while, and Restart is always the way back.
//
//	s := supervise.New(supervise.Options{
//		Policy: supervise.DefaultPolicy(),
//		Life: func(ctx context.Context, ready func()) error {
//			return child.Run(ctx, spec, func(ctx context.Context, p *child.Process) error {
//				… shake hands …
//				ready()
//				… serve until ctx ends …
//			})
//		},
//		Notify: func(e supervise.Event) { log.Info("life", "event", e) },
//	})
//	err := s.Run(ctx) // until ctx ends
//
// The package is pure: standard library only, no process, no network. What is decided, and when, is a
// function of (past, now, outcome) in ledger.go.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// ErrRestart is the cause (context.Cause) of a life's context that was ended by Restart.
var ErrRestart = errors.New("restart requested")

// Policy says how often and how fast lives follow each other. Fields are taken as they stand, zero
// included: the zero Policy runs one life and then rests in failed. DefaultPolicy has the documented
// defaults (docs/protocol.md, "Supervision").
type Policy struct {
	MaxRestarts int           // restarts within Window before failed: N restarts are N+1 lives
	Window      time.Duration // the sliding window that restarts are counted in
	BaseBackoff time.Duration // the first delay; doubles with each restart of a streak
	MaxBackoff  time.Duration // the longest delay, before 0-50 % of jitter is added
	ResetAfter  time.Duration // running this long after ready clears the backoff, though not the window
	FailedRetry time.Duration // out of failed, one life is tried this often; 0: never
}

// DefaultPolicy returns 5 restarts in 5 minutes, a backoff from 1 s to 60 s that is cleared by 60 s of
// health, and a retry out of failed every 5 minutes.
func DefaultPolicy() Policy {
	return Policy{
		MaxRestarts: 5,
		Window:      5 * time.Minute,
		BaseBackoff: time.Second,
		MaxBackoff:  time.Minute,
		ResetAfter:  time.Minute,
		FailedRetry: 5 * time.Minute,
	}
}

// Kind is what an Event says.
type Kind int

// The kinds of events.
const (
	Starting   Kind = iota // a life starts now
	Restarting             // a life ended; the next one starts in Delay
	Failed                 // a life ended and the budget is spent; the next one starts in Delay, 0: never
)

func (k Kind) String() string {
	switch k {
	case Starting:
		return "starting"
	case Restarting:
		return "restarting"
	case Failed:
		return "failed"
	}
	return "unknown"
}

// Event is one transition. A life that becomes ready is no event: it said so itself.
type Event struct {
	Kind     Kind
	Life     int           // Starting: the number of the life that starts, from 1; otherwise of the one that ended
	Err      error         // why the last life ended; nil at the first start. After Restart it wraps ErrRestart
	Ready    bool          // the life that ended had become ready (Restarting, Failed)
	Delay    time.Duration // until the next life; Failed: 0 means never, until somebody calls Restart
	Restarts int           // restarts in the window, this one included
}

// Options are what a Supervisor is made of. Life is required.
type Options struct {
	Policy Policy

	// Life runs one life and returns when it is over, cleaned up. It calls ready (from any goroutine, once
	// or more often) when it has begun to do its work. Returning nil is an end like any other: nobody asked
	// for it. It must return soon after ctx ends.
	Life func(ctx context.Context, ready func()) error

	// Notify, if set, is told each transition, in order, from the goroutine that called Run. Nothing
	// happens before it returns.
	Notify func(Event)

	// Jitter, if set, replaces the random source: it returns numbers in [0, 1).
	Jitter func() float64
}

// A Supervisor runs the lives of one func. Make it with New, run it with Run, once.
type Supervisor struct {
	opts Options

	mu     sync.Mutex
	forced bool                    // Restart was called and not yet acted upon
	cancel context.CancelCauseFunc // ends the present phase: a life, or the wait for the next one
}

// New returns a Supervisor. It starts nothing.
func New(o Options) *Supervisor {
	if o.Notify == nil {
		o.Notify = func(Event) {}
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return &Supervisor{opts: o}
}

// Restart ends the present life (its context's cause is ErrRestart), or the wait for the next one, failed
// included, clears the budget and the backoff, and starts the next life at once. It returns without waiting
// for any of that; several calls before the next life are one. Before Run it does nothing.
func (s *Supervisor) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.forced = true
		s.cancel(ErrRestart)
	}
}

// Run runs life after life until ctx ends, and returns ctx's cause once the last one has returned. In a
// backoff or in failed it returns at once. There is no other way out: in failed without a retry it waits
// for Restart.
func (s *Supervisor) Run(ctx context.Context) error {
	defer s.enter(nil)
	var past ledger
	var last error
	for life := 1; ctx.Err() == nil; life++ {
		s.opts.Notify(Event{Kind: Starting, Life: life, Err: last, Restarts: len(past.restarts)})
		o, err := s.live(ctx)
		if ctx.Err() != nil {
			break
		}
		last = err
		e := Event{Kind: Restarting, Life: life, Err: err, Ready: o.ready}
		forced := s.takeForced()
		if forced {
			e.Err = because(ErrRestart, err)
			s.opts.Notify(e)
		} else {
			next := past.next(s.opts.Policy, time.Now(), o, s.opts.Jitter())
			if next.failed {
				e.Kind = Failed
			}
			e.Delay, e.Restarts = next.delay, len(past.restarts)
			s.opts.Notify(e)
			forced = s.rest(ctx, next)
		}
		if forced {
			last = because(ErrRestart, err)
			past.clear()
		}
	}
	return context.Cause(ctx)
}

// because says that err came with, or was cut short by, a restart that somebody asked for.
func because(cause, err error) error {
	switch {
	case err == nil, errors.Is(err, cause):
		return cause
	}
	return fmt.Errorf("%w (%w)", cause, err)
}

// live runs one life.
func (s *Supervisor) live(ctx context.Context) (outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.enter(cancel) // a Restart that came since the last phase gets what it asked for
	var mu sync.Mutex
	var since time.Time
	err := s.opts.Life(ctx, func() {
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

// rest waits for the next life. It reports whether Restart cut the wait short.
func (s *Supervisor) rest(ctx context.Context, next step) (forced bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.enter(cancel) {
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

// enter begins a phase, which cancel ends; nil is the end of all. It reports whether Restart was called
// between the last phase and this one.
func (s *Supervisor) enter(cancel context.CancelCauseFunc) (forced bool) {
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
