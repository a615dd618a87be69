package breaker

import (
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// phase is a breaker between two changes of state. state, cb, delay and retryAt never change.
type phase struct {
	state   heartbeat.BreakerState
	cb      circuitbreaker.CircuitBreaker[any] // in that state; the moment it leaves it the phase is over
	delay   time.Duration                      // for which cb is open, or would be after a failure
	retryAt time.Time                          // open: when it ends

	// Half-open: the probes. A probe that takes longer than delay no longer keeps others out, and no longer
	// counts: a call may take an hour.
	probes uint64    // handed out so far
	busy   bool      // the last of them is under way
	until  time.Time // and keeps others out
}

// probeRetry is what a caller who meets a probe under way is told to wait: it will have ended soon, or
// failed.
const probeRetry = time.Second

func newBreaker(s Settings, delay time.Duration) circuitbreaker.CircuitBreaker[any] {
	return circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(uint(s.Threshold)).
		WithSuccessThreshold(uint(s.Successes)).
		WithDelay(delay).
		Build()
}

func closedPhase(s Settings) *phase {
	return &phase{state: heartbeat.BreakerClosed, cb: newBreaker(s, s.Delay), delay: s.Delay}
}

// openPhase follows a phase whose cb has just opened.
func openPhase(last *phase, now time.Time) *phase {
	return &phase{state: heartbeat.BreakerOpen, cb: last.cb, delay: last.delay, retryAt: now.Add(last.delay)}
}

// halfOpenPhase follows a phase that was open for delay; failing, it is open for twice as long.
func halfOpenPhase(s Settings, delay time.Duration) *phase {
	delay = min(2*delay, max(s.MaxDelay, s.Delay))
	p := &phase{state: heartbeat.BreakerHalfOpen, cb: newBreaker(s, delay), delay: delay}
	p.cb.HalfOpen()
	return p
}

// takeSlot returns the number of a new probe, or 0 and when to come back.
func (p *phase) takeSlot(now time.Time) (probe uint64, free time.Time) {
	if p.busy && now.Before(p.until) {
		if free = now.Add(probeRetry); p.until.Before(free) {
			free = p.until
		}
		return 0, free
	}
	p.probes++
	p.busy, p.until = true, now.Add(p.delay)
	return p.probes, time.Time{}
}

// giveSlot takes the slot back from a probe. It reports whether the call counts at all: it was no probe, or
// the one under way.
func (p *phase) giveSlot(probe uint64) bool {
	if p.state != heartbeat.BreakerHalfOpen {
		return true
	}
	if !p.busy || probe != p.probes {
		return false
	}
	p.busy = false
	return true
}
