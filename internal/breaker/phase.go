package breaker

import (
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// phase is the time between two changes of a breaker's state. state, cb, delay and retryAt never change.
type phase struct {
	state   heartbeat.BreakerState
	cb      circuitbreaker.CircuitBreaker[any] // in that state; the phase ends when cb leaves it
	delay   time.Duration                      // how long cb is open, or would be after a failure
	retryAt time.Time                          // open: when the phase ends

	// Half-open: the probes. After delay a slow probe no longer blocks others and no longer counts, because a call
	// may take an hour.
	probes uint64    // admitted so far
	busy   bool      // the last probe is in flight
	until  time.Time // and blocks others until then
}

// probeRetry is the wait for callers that are refused while a probe is in flight: it ends soon, or fails.
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

// openPhase returns the open phase after last, in which cb has just opened.
func openPhase(last *phase, now time.Time) *phase {
	return &phase{state: heartbeat.BreakerOpen, cb: last.cb, delay: last.delay, retryAt: now.Add(last.delay)}
}

// halfOpenPhase returns the half-open phase after one that was open for delay; after a failed probe the breaker is open
// for twice as long.
func halfOpenPhase(s Settings, delay time.Duration) *phase {
	delay = min(2*delay, max(s.MaxDelay, s.Delay))
	p := &phase{state: heartbeat.BreakerHalfOpen, cb: newBreaker(s, delay), delay: delay}
	p.cb.HalfOpen()
	return p
}

// takeSlot returns the number of a new probe, or 0 and the time to try again.
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

// giveSlot releases the slot of a probe. It reports whether the call's outcome counts: the call was no probe, or it
// was the present one.
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
