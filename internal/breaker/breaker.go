// Package breaker is a circuit breaker for calls to one instance or one extension.
//
//	tok, err := b.Acquire()
//	if err != nil {
//		return err // an *OpenError with the time of the next try
//	}
//	outcome := breaker.Neutral // the outcome if the call panics
//	defer func() { tok.Done(outcome) }()
//
// It is built on failsafe-go's circuit breaker and adds what that one cannot do (docs/protocol.md, "Circuit breakers"):
//
//   - A call's outcome counts only in the state in which the call began. failsafe-go counts the results of
//     earlier calls as probes and admits more probes for them.
//   - There is a third outcome, neither success nor failure: a cancelled call is no evidence about the
//     extension. In failsafe-go a probe without a result would close the breaker or block all further probes.
//   - The delay doubles with each failed probe.
//
// failsafe-go still counts and decides the states. Each state here has a failsafe-go breaker of its own, created with
// the delay that a failure in that state causes. It is discarded with the state, so that late results have no effect.
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

	// OnChange, if set, receives each change of state, with the time of the next probe if the new state is open. It
	// is called on the goroutine that caused the change, one call at a time, in order, with no lock held; changes
	// during a call may be merged into the last one.
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
	name  string
	set   Settings
	phase atomic.Pointer[phase] // changed under mu

	mu        sync.Mutex
	notifying bool   // a goroutine is calling OnChange
	notified  *phase // the phase that OnChange received last
}

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
	b := &Breaker{name: name, set: s}
	b.phase.Store(closedPhase(s))
	b.notified = b.phase.Load()
	return b
}

// Name returns the name given to New.
func (b *Breaker) Name() string { return b.name }

// Token is the permission for one call. The zero Token's Done does nothing.
type Token struct {
	b     *Breaker
	phase *phase
	probe uint64 // half-open: the number of the probe
}

// Acquire requests permission for one call. Each Token needs one Done, at the latest at the call's deadline. The
// error is an *OpenError. While the breaker is closed, Acquire takes a few nanoseconds.
func (b *Breaker) Acquire() (Token, error) {
	if p := b.phase.Load(); p.state == heartbeat.BreakerClosed {
		return Token{b: b, phase: p}, nil
	}
	b.mu.Lock()
	now := time.Now()
	p := b.phase.Load()
	if p.state == heartbeat.BreakerOpen && p.cb.RemainingDelay() == 0 {
		p = b.setPhase(halfOpenPhase(b.set, p.delay))
	}
	t := Token{b: b, phase: p}
	var err error
	switch p.state {
	case heartbeat.BreakerOpen:
		err = &OpenError{Name: b.name, State: p.state, RetryAt: p.retryAt}
	case heartbeat.BreakerHalfOpen:
		var free time.Time
		if t.probe, free = p.takeSlot(now); t.probe == 0 {
			err = &OpenError{Name: b.name, State: p.state, RetryAt: free}
		}
	}
	b.mu.Unlock()
	b.notify()
	if err != nil {
		return Token{}, err
	}
	return t, nil
}

// Done records the outcome of the call. Only the first Done of a probe counts. No Done counts if the breaker's state
// has changed since Acquire, or if Close was called.
func (t Token) Done(o Outcome) {
	if t.b == nil || o == Neutral && t.probe == 0 {
		return
	}
	if t.b.record(t, o) {
		t.b.notify()
	}
}

// record applies an outcome and reports whether it changed the state.
func (b *Breaker) record(t Token, o Outcome) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.phase.Load()
	if p != t.phase || !p.giveSlot(t.probe) || o == Neutral {
		return false
	}
	// The permit is taken only now that the probe has a result: failsafe-go could not take an unused permit back.
	if p.state == heartbeat.BreakerHalfOpen && !p.cb.TryAcquirePermit() {
		return false
	}
	if o == Success {
		p.cb.RecordSuccess()
	} else {
		p.cb.RecordFailure()
	}
	switch p.cb.State() {
	case circuitbreaker.OpenState:
		b.setPhase(openPhase(p, time.Now()))
		return true
	case circuitbreaker.ClosedState:
		if p.state != heartbeat.BreakerClosed {
			b.setPhase(closedPhase(b.set))
			return true
		}
	}
	return false
}

// Close closes the breaker in any state and clears its failures and the doubled delay, because a handshake has
// succeeded. Calls in flight no longer count.
func (b *Breaker) Close() {
	b.mu.Lock()
	b.setPhase(closedPhase(b.set))
	b.mu.Unlock()
	b.notify()
}

// HalfOpen admits a probe immediately if the breaker is open, because the extension was reported ready. In any other
// state it does nothing.
func (b *Breaker) HalfOpen() {
	b.mu.Lock()
	if p := b.phase.Load(); p.state == heartbeat.BreakerOpen {
		b.setPhase(halfOpenPhase(b.set, p.delay))
	}
	b.mu.Unlock()
	b.notify()
}

// State returns the state and, if it is open, the time of the next probe. An open breaker is half-open when its delay
// is over; OnChange receives that only with the next Acquire, because no timer runs here.
func (b *Breaker) State() (state heartbeat.BreakerState, retryAt time.Time) {
	p := b.phase.Load()
	if p.state == heartbeat.BreakerOpen && p.cb.RemainingDelay() == 0 {
		return heartbeat.BreakerHalfOpen, time.Time{}
	}
	return p.state, p.retryAt
}

// setPhase makes p the present phase. b.mu is held.
func (b *Breaker) setPhase(p *phase) *phase {
	b.phase.Store(p)
	return p
}

// notify calls OnChange until it has the present phase, unless another goroutine is doing so already.
func (b *Breaker) notify() {
	if b.set.OnChange == nil {
		return
	}
	for b.notifyOnce() {
	}
}

// notifyOnce reports whether OnChange was called.
func (b *Breaker) notifyOnce() bool {
	b.mu.Lock()
	p := b.phase.Load()
	if b.notifying || p.state == b.notified.state && p.retryAt.Equal(b.notified.retryAt) {
		b.mu.Unlock()
		return false
	}
	b.notifying, b.notified = true, p
	b.mu.Unlock()
	defer func() { // also after a panic, so that the next change is reported
		b.mu.Lock()
		b.notifying = false
		b.mu.Unlock()
	}()
	b.set.OnChange(p.state, p.retryAt)
	return true
}
