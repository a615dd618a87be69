package supervise

import "time"

// ledger is the restart history that the next decision depends on. It has no clock and no goroutine: its input is an
// outcome and a time, its output the next step.
type ledger struct {
	restarts  []time.Time   // ends that led to a restart, oldest first, within the window; during probation those before it
	streak    int           // restarts since the backoff was last cleared
	backoff   time.Duration // the last delay before jitter; 0: none yet in this streak
	probation bool          // the run is a retry in the failed state and has not been healthy for ResetAfter
}

// outcome is what the decision uses of a run that ended.
type outcome struct {
	ready     bool          // it called ready
	healthy   time.Duration // how long it ran after that
	permanent bool          // the next run would end in the same way
}

// step is the decision of next.
type step struct {
	failed bool          // out of restarts; otherwise restart after delay
	delay  time.Duration // until the next run; 0 with failed: never
}

// next decides what follows a run that ended at now. jitter, in [0, 1), selects how much of 0-50 % is added to a
// backoff.
func (l *ledger) next(p Policy, now time.Time, o outcome, jitter float64) step {
	if o.ready && o.healthy >= p.ResetAfter {
		l.streak, l.backoff, l.probation = 0, 0, false
	}
	// The restarts after which it gave up are the reason for as long as its retries fail; and slow starts that all fail must
	// not leave the window one after the other.
	if o.ready && !l.probation {
		l.slide(p.RestartWindow, now)
	}
	if o.permanent || l.probation || len(l.restarts) >= p.MaxRestarts {
		l.probation = l.probation || !o.permanent
		return step{failed: true, delay: p.FailedRetry}
	}
	l.restarts = append(l.restarts, now)
	l.streak++
	if l.streak == 1 && o.ready {
		return step{}
	}
	l.backoff = min(max(2*l.backoff, p.BaseBackoff), p.MaxBackoff)
	return step{delay: l.backoff + time.Duration(jitter*float64(l.backoff)/2)}
}

// slide removes the restarts that have left the window, which is half-open: one exactly RestartWindow ago is out.
func (l *ledger) slide(window time.Duration, now time.Time) {
	n := 0
	for n < len(l.restarts) && now.Sub(l.restarts[n]) >= window {
		n++
	}
	l.restarts = append(l.restarts[:0], l.restarts[n:]...)
}

// clear removes the whole history: an explicit restart has the full number of restarts again.
func (l *ledger) clear() { *l = ledger{} }
