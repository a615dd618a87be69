// Package breaker is a circuit breaker for calls to one instance or one extension.
//
//	tok, err := b.Acquire()
//	if err != nil {
//		return err // an *OpenError, with the time to come back
//	}
//	outcome := breaker.Neutral // what stands if the call panics
//	defer func() { tok.Done(outcome) }()
//
// It is failsafe-go's breaker, except for what that one cannot do (docs/protocol.md, "Breaker"):
//
//   - A call's outcome counts only in the state that the call began in. There, results of calls from before
//     would be counted as probes, and let more probes in.
//   - There is a third outcome, neither success nor failure: a caller that gave up says nothing about the
//     other side. There, a probe without a result would close the breaker for good, or never let one in
//     again.
//   - The delay doubles with each failed probe.
//
// The counting and the states remain failsafe-go's. Each state here is a failsafe-go breaker of its own,
// made with the delay that a failure in that state would bring, and left behind with the state: what comes
// too late finds a breaker that nobody looks at.
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

// Settings are a breaker's numbers; zero means the default.
type Settings struct {
	Threshold int           // failures in a row that open it; 5
	Delay     time.Duration // from open to half-open; 10 s, doubled by each failed probe
	MaxDelay  time.Duration // the most that Delay is doubled to; 120 s
	Successes int           // successful probes that close it; 2

	// OnChange, if set, is told each change of state, with the time of the next probe if the new state is
	// open. It is called by whoever caused the change, one call at a time, in order, outside of all
	// locks; changes that come faster than it returns may be merged into the last one.
	OnChange func(state heartbeat.BreakerState, retryAt time.Time)
}

// Outcome is what a call says about the other side.
type Outcome int

// The outcomes. Only a time-out and a write that could not complete are failures; any answer is a success,
// an error of the extension's own included.
const (
	Neutral Outcome = iota // nothing: cancelled, refused, died under way, panicked
	Success
	Failure
)

// OpenError is Acquire's refusal.
type OpenError struct {
	Name    string
	State   heartbeat.BreakerState // open, or half-open while a probe is under way
	RetryAt time.Time              // when it is worth coming back
}

func (e *OpenError) Error() string {
	return fmt.Sprintf("breaker %s is %s, retry in %s", e.Name, e.State, max(0, time.Until(e.RetryAt)).Round(time.Millisecond))
}

// RetryAfter is how long to wait after Acquire's refusal err, in whole milliseconds and not too short; 0 for any other
// error, and for a refusal that is past.
func RetryAfter(err error) time.Duration {
	open, ok := errors.AsType[*OpenError](err)
	if !ok {
		return 0
	}
	return max(0, time.Until(open.RetryAt)+time.Millisecond-1).Truncate(time.Millisecond)
}

// Breaker is a circuit breaker. Its methods may be called at any time, from any goroutine.
type Breaker struct {
	name  string
	set   Settings
	phase atomic.Pointer[phase] // changed under mu

	mu      sync.Mutex
	telling bool   // somebody is calling OnChange
	told    *phase // what it was told last
}

// New returns a closed breaker. The name is for people: ext:stdio:<id>, ext:http:<id>, ext:nats:<id>.
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
	b.told = b.phase.Load()
	return b
}

// Name is what New was given.
func (b *Breaker) Name() string { return b.name }

// Token is the permission for one call. The zero Token's Done does nothing.
type Token struct {
	b     *Breaker
	phase *phase
	probe uint64 // half-open: its number
}

// Acquire asks for permission to make one call. Each Token wants one Done, at the latest with the call's
// deadline. The error is an *OpenError. While the breaker is closed this costs a few nanoseconds.
func (b *Breaker) Acquire() (Token, error) {
	if p := b.phase.Load(); p.state == heartbeat.BreakerClosed {
		return Token{b: b, phase: p}, nil
	}
	b.mu.Lock()
	now := time.Now()
	p := b.phase.Load()
	if p.state == heartbeat.BreakerOpen && p.cb.RemainingDelay() == 0 {
		p = b.enter(halfOpenPhase(b.set, p.delay))
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
	b.tell()
	if err != nil {
		return Token{}, err
	}
	return t, nil
}

// Done says how the call went. Only the first Done of a probe counts, and none if the breaker's state has
// changed since Acquire, or Close was called.
func (t Token) Done(o Outcome) {
	if t.b == nil || o == Neutral && t.probe == 0 {
		return
	}
	if t.b.record(t, o) {
		t.b.tell()
	}
}

// record reports whether the state has changed.
func (b *Breaker) record(t Token, o Outcome) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.phase.Load()
	if p != t.phase || !p.giveSlot(t.probe) || o == Neutral {
		return false
	}
	// failsafe-go hears of a probe only now that it has a result: it could not take a permit back.
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
		b.enter(openPhase(p, time.Now()))
		return true
	case circuitbreaker.ClosedState:
		if p.state != heartbeat.BreakerClosed {
			b.enter(closedPhase(b.set))
			return true
		}
	}
	return false
}

// Close closes the breaker, whatever its state, and forgets all failures and the doubled delay: a handshake
// has succeeded. Calls that are under way no longer count.
func (b *Breaker) Close() {
	b.mu.Lock()
	b.enter(closedPhase(b.set))
	b.mu.Unlock()
	b.tell()
}

// HalfOpen lets a probe in at once if the breaker is open: the other side is said to be back. In any other
// state it does nothing.
func (b *Breaker) HalfOpen() {
	b.mu.Lock()
	if p := b.phase.Load(); p.state == heartbeat.BreakerOpen {
		b.enter(halfOpenPhase(b.set, p.delay))
	}
	b.mu.Unlock()
	b.tell()
}

// State returns the state and, if it is open, the time of the next probe. An open breaker whose delay is
// over is half-open, although OnChange hears of that only from the next Acquire: nothing here runs by
// itself.
func (b *Breaker) State() (state heartbeat.BreakerState, retryAt time.Time) {
	p := b.phase.Load()
	if p.state == heartbeat.BreakerOpen && p.cb.RemainingDelay() == 0 {
		return heartbeat.BreakerHalfOpen, time.Time{}
	}
	return p.state, p.retryAt
}

// enter makes p the present phase. b.mu is held.
func (b *Breaker) enter(p *phase) *phase {
	b.phase.Store(p)
	return p
}

// tell brings OnChange up to date, unless somebody is at it already, who sees to it then.
func (b *Breaker) tell() {
	if b.set.OnChange == nil {
		return
	}
	for b.tellOne() {
	}
}

// tellOne reports whether there was something to tell.
func (b *Breaker) tellOne() bool {
	b.mu.Lock()
	p := b.phase.Load()
	if b.telling || p.state == b.told.state && p.retryAt.Equal(b.told.retryAt) {
		b.mu.Unlock()
		return false
	}
	b.telling, b.told = true, p
	b.mu.Unlock()
	defer func() { // also after a panic: the next change must not be lost
		b.mu.Lock()
		b.telling = false
		b.mu.Unlock()
	}()
	b.set.OnChange(p.state, p.retryAt)
	return true
}
