// Package breaker is a circuit breaker for calls to one instance or one extension (docs/protocol.md, "Circuit breakers").
//
//	tok, err := b.Acquire()
//	if err != nil {
//		return err // an *OpenError with the time of the next try
//	}
//	outcome := breaker.Neutral // the outcome if the call panics
//	defer func() { tok.Done(outcome) }()
//
// failsafe-go's breaker counts and decides the states. This package adds what it does not have: tokens, so that a call's
// outcome counts only in the state in which the call began, and a probe without a result does not block all others; and a
// delay that doubles with each failed probe.
package breaker

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Settings are the parameters of a breaker; zero means the default.
type Settings struct {
	Threshold int           // consecutive failures that open it; 5
	Delay     time.Duration // from open to half-open; 10 s, doubled by each failed probe
	MaxDelay  time.Duration // the limit of the doubling; 120 s
	Successes int           // successful probes that close it; 2

	// OnChange, if set, is called after each change of state, with the time of the next probe if the new state is open. It
	// is called on the goroutine that caused the change, with no lock held; two calls may overlap.
	OnChange func(state heartbeat.BreakerState, retryAt time.Time)
}

// Outcome is the result of a call as evidence about the extension.
type Outcome int

// The outcomes. Only a timeout and an incomplete write are failures; any reply is a success, including an error from
// the extension.
const (
	Neutral Outcome = iota // no evidence: cancelled, refused, process ended during the call, panicked
	Success
	Failure
)

// OpenError is the error of Acquire when the breaker refuses a call.
type OpenError struct {
	Name    string
	State   heartbeat.BreakerState // open, or half-open while a probe is in flight
	RetryAt time.Time              // when to try again
}

func (e *OpenError) Error() string {
	return fmt.Sprintf("breaker %s is %s, retry in %s", e.Name, e.State, max(0, time.Until(e.RetryAt)).Round(time.Millisecond))
}

// RetryAfter returns how long to wait after Acquire returned err, in milliseconds, rounded up; 0 for any other error,
// and if the time has passed.
func RetryAfter(err error) time.Duration {
	open, ok := errors.AsType[*OpenError](err)
	if !ok {
		return 0
	}
	return max(0, time.Until(open.RetryAt)+time.Millisecond-1).Truncate(time.Millisecond)
}

// Breaker is a circuit breaker. Its methods are safe for concurrent use.
type Breaker struct {
	name string
	set  Settings
	fast atomic.Uint64 // epoch while the breaker is closed, otherwise 0: then Acquire takes no lock

	mu      sync.Mutex
	cb      circuitbreaker.CircuitBreaker[any]
	state   heartbeat.BreakerState // cb's, in our words
	epoch   uint64                 // outcomes count only for tokens of this epoch
	delay   time.Duration          // how long the breaker will be open next time; half-open: for how long a probe blocks others
	retryAt time.Time              // open: when it becomes half-open; half-open: when the present probe, if any, no longer blocks others
}

// probeRetry is the wait for callers that are refused while a probe is in flight: it ends soon, or fails.
const probeRetry = time.Second

// New returns a closed breaker. The name appears in errors: ext:stdio:<id>, ext:http:<id>, ext:nats:<id>.
func New(name string, s Settings) *Breaker {
	if s.Threshold <= 0 {
		s.Threshold = 5
	}
	if s.Delay <= 0 {
		s.Delay = 10 * time.Second
	}
	if s.MaxDelay <= 0 {
		s.MaxDelay = 2 * time.Minute
	}
	if s.Successes <= 0 {
		s.Successes = 2
	}
	b := &Breaker{name: name, set: s, cb: circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(uint(s.Threshold)).WithSuccessThreshold(uint(s.Successes)).Build()}
	b.change(func() {})
	return b
}

// Name returns the name given to New.
func (b *Breaker) Name() string { return b.name }

// Token is the permission for one call. The zero Token's Done does nothing.
type Token struct {
	b     *Breaker
	epoch uint64
	probe bool
}

// Acquire requests permission for one call. Each Token needs one Done, at the latest at the call's deadline. The
// error is an *OpenError. While the breaker is closed, Acquire takes a few nanoseconds.
func (b *Breaker) Acquire() (Token, error) {
	if epoch := b.fast.Load(); epoch != 0 {
		return Token{b: b, epoch: epoch}, nil
	}
	now := time.Now()
	if state, _ := b.State(); state == heartbeat.BreakerHalfOpen {
		b.HalfOpen()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state == heartbeat.BreakerClosed:
		return Token{b: b, epoch: b.epoch}, nil
	case b.state == heartbeat.BreakerOpen:
		return Token{}, &OpenError{Name: b.name, State: b.state, RetryAt: b.retryAt}
	case now.Before(b.retryAt):
		retryAt := now.Add(probeRetry)
		if b.retryAt.Before(retryAt) {
			retryAt = b.retryAt
		}
		return Token{}, &OpenError{Name: b.name, State: b.state, RetryAt: retryAt}
	}
	// A call may take an hour: after the delay a slow probe no longer blocks others. The first of them that ends counts.
	b.retryAt = now.Add(b.delay)
	return Token{b: b, epoch: b.epoch, probe: true}, nil
}

// Done records the outcome of the call. Only the first Done of a probe counts. No Done counts if the breaker's state
// has changed since Acquire, or if Close was called.
func (t Token) Done(o Outcome) {
	if t.b == nil || o == Neutral && !t.probe {
		return
	}
	t.b.change(func() {
		b := t.b
		if t.epoch != b.epoch {
			return
		}
		if t.probe {
			b.retryAt = time.Time{}
			if o != Neutral { // another probe may still be in progress
				b.epoch++
			}
		}
		switch o {
		case Success:
			b.cb.RecordSuccess()
		case Failure:
			b.cb.RecordFailure()
		}
	})
}

// Close closes the breaker in any state and clears its failures and the doubled delay, because a handshake has
// succeeded. Calls in flight no longer count.
func (b *Breaker) Close() {
	b.change(func() {
		b.cb.Open()
		b.cb.Close() // also clears the failures of a closed one
		b.epoch++
	})
}

// HalfOpen admits a probe immediately if the breaker is open, because the extension was reported ready. In any other
// state it does nothing.
func (b *Breaker) HalfOpen() {
	b.change(func() {
		if b.state == heartbeat.BreakerOpen {
			b.cb.HalfOpen()
		}
	})
}

// State returns the state and, if it is open, the time of the next probe. An open breaker is half-open when its delay
// is over. OnChange is called for that only with the next Acquire, because no timer runs here: an owner that needs it earlier starts one.
func (b *Breaker) State() (state heartbeat.BreakerState, retryAt time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state != heartbeat.BreakerOpen:
		return b.state, time.Time{}
	case !time.Now().Before(b.retryAt):
		return heartbeat.BreakerHalfOpen, time.Time{}
	}
	return b.state, b.retryAt
}

var states = map[circuitbreaker.State]heartbeat.BreakerState{
	circuitbreaker.ClosedState:   heartbeat.BreakerClosed,
	circuitbreaker.OpenState:     heartbeat.BreakerOpen,
	circuitbreaker.HalfOpenState: heartbeat.BreakerHalfOpen,
}

// change calls f, which may change cb's state, with mu held. If it did, change calls OnChange.
func (b *Breaker) change(f func()) {
	b.mu.Lock()
	before := b.state
	f()
	b.state = states[b.cb.State()]
	changed := b.state != before
	if changed {
		b.epoch++
		b.retryAt = time.Time{}
	}
	b.fast.Store(0)
	switch {
	case b.state == heartbeat.BreakerClosed:
		b.delay = b.set.Delay
		b.fast.Store(b.epoch)
	case b.state == heartbeat.BreakerOpen && changed:
		b.retryAt = time.Now().Add(b.delay)
		b.delay = min(2*b.delay, max(b.set.MaxDelay, b.set.Delay))
	}
	state, retryAt := b.state, b.retryAt
	b.mu.Unlock()
	if changed && before != "" && b.set.OnChange != nil {
		b.set.OnChange(state, retryAt)
	}
}
