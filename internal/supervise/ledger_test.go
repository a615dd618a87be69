package supervise

import (
	"testing"
	"time"
)

func TestLedger(t *testing.T) {
	type end struct {
		at      time.Duration // since the start
		ready   bool
		healthy time.Duration
		want    time.Duration
		failed  bool

		permanent bool
	}
	policy := DefaultPolicy()
	tests := []struct {
		name   string
		policy func(*Policy)
		jitter float64
		ends   []end
	}{
		{name: "the first restart of a ready run is immediate, then the delays double", ends: []end{
			{at: 0, ready: true, want: 0},
			{at: 1 * time.Second, ready: true, want: 1 * time.Second},
			{at: 2 * time.Second, ready: true, want: 2 * time.Second},
			{at: 3 * time.Second, want: 4 * time.Second},
			{at: 4 * time.Second, ready: true, want: 8 * time.Second},
			{at: 5 * time.Second, ready: true, failed: true, want: 5 * time.Minute},
		}},
		{name: "a run that was never ready is delayed from the first restart", ends: []end{
			{at: 0, want: 1 * time.Second},
			{at: 1 * time.Second, ready: true, want: 2 * time.Second},
		}},
		{name: "slow starts that all fail do not leave the window", ends: []end{
			{at: 5 * time.Minute, want: 1 * time.Second}, {at: 10 * time.Minute, want: 2 * time.Second}, {at: 15 * time.Minute, want: 4 * time.Second},
			{at: 20 * time.Minute, want: 8 * time.Second}, {at: 25 * time.Minute, want: 16 * time.Second}, {at: 30 * time.Minute, failed: true, want: 5 * time.Minute},
		}},
		{name: "the delay stops at its maximum", policy: func(p *Policy) { p.MaxRestarts, p.MaxBackoff = 10, 3*time.Second }, ends: []end{
			{want: 1 * time.Second}, {want: 2 * time.Second}, {want: 3 * time.Second}, {want: 3 * time.Second},
		}},
		{name: "jitter adds up to half of the delay", jitter: 0.5, ends: []end{
			{want: 1250 * time.Millisecond}, {want: 2500 * time.Millisecond},
		}},
		{name: "a healthy run clears the backoff", ends: []end{
			{at: 0, want: 1 * time.Second},
			{at: 1 * time.Second, want: 2 * time.Second},
			{at: 70 * time.Second, ready: true, healthy: time.Minute, want: 0},
			{at: 71 * time.Second, ready: true, healthy: time.Second, want: 1 * time.Second},
		}},
		{name: "a run slightly too short does not clear it", ends: []end{
			{at: 0, want: 1 * time.Second},
			{at: 70 * time.Second, ready: true, healthy: time.Minute - 1, want: 2 * time.Second},
		}},
		{name: "a healthy run does not clear the window", policy: func(p *Policy) { p.MaxRestarts = 2 }, ends: []end{
			{at: 0, ready: true, healthy: time.Minute, want: 0},
			{at: 1 * time.Minute, ready: true, healthy: time.Minute, want: 0},
			{at: 2 * time.Minute, ready: true, healthy: time.Minute, failed: true, want: 5 * time.Minute},
		}},
		{name: "restarts slide out of the window", policy: func(p *Policy) { p.MaxRestarts = 2 }, ends: []end{
			{at: 0, ready: true, healthy: time.Minute, want: 0},
			{at: 2 * time.Minute, ready: true, healthy: time.Minute, want: 0},
			{at: 5 * time.Minute, ready: true, healthy: time.Minute, want: 0},
			{at: 7*time.Minute - 1, ready: true, healthy: time.Minute, failed: true, want: 5 * time.Minute},
		}},
		{name: "failed: single retries until one is healthy", policy: func(p *Policy) { p.MaxRestarts = 1 }, ends: []end{
			{at: 0, want: 1 * time.Second},
			{at: 1 * time.Second, failed: true, want: 5 * time.Minute},
			{at: 20 * time.Minute, failed: true, want: 5 * time.Minute},
			{at: 40 * time.Minute, ready: true, healthy: 59 * time.Second, failed: true, want: 5 * time.Minute},
			{at: 60 * time.Minute, ready: true, healthy: 61 * time.Second, want: 0},
			{at: 80 * time.Minute, ready: true, healthy: 1 * time.Second, want: 1 * time.Second},
		}},
		{name: "permanent: failed at once, and afterwards with the full number of restarts", ends: []end{
			{at: 0, permanent: true, failed: true, want: 5 * time.Minute},
			{at: 5 * time.Minute, permanent: true, failed: true, want: 5 * time.Minute},
			{at: 6 * time.Minute, ready: true, want: 0},
			{at: 7 * time.Minute, ready: true, want: time.Second},
		}},
		{name: "no retry", policy: func(p *Policy) { p.MaxRestarts, p.FailedRetry = 0, 0 }, ends: []end{
			{ready: true, failed: true, want: 0},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := policy
			if tt.policy != nil {
				tt.policy(&p)
			}
			start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			var l ledger
			for i, e := range tt.ends {
				got := l.next(p, start.Add(e.at), outcome{ready: e.ready, healthy: e.healthy, permanent: e.permanent}, tt.jitter)
				want := step{failed: e.failed, delay: e.want}
				if got != want {
					t.Fatalf("end %d: got %+v, want %+v", i, got, want)
				}
				if len(l.restarts) > p.MaxRestarts {
					t.Fatalf("end %d: has %d restarts, the limit is %d", i, len(l.restarts), p.MaxRestarts)
				}
			}
		})
	}
}
