package supervise_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/supervise"
)

var errCrash = errors.New("crashed")

// rig runs a Supervisor in a bubble and logs its runs and events with their times.
type rig struct {
	*supervise.Supervisor
	log   []string
	runs  int
	begin time.Time
	done  chan error
	stop  context.CancelCauseFunc
}

func start(t *testing.T, p supervise.Policy, run func(ctx context.Context, ready func()) error) *rig {
	r := &rig{begin: time.Now(), done: make(chan error, 1)}
	ctx, cancel := context.WithCancelCause(t.Context())
	r.stop = cancel
	r.Supervisor = supervise.New(supervise.Options{
		Policy: p,
		Run: func(ctx context.Context, ready func()) error {
			r.runs++
			r.log = append(r.log, fmt.Sprintf("%v starting %d", time.Since(r.begin), r.runs))
			return run(ctx, ready)
		},
		Jitter: func() float64 { return 0 },
		Notify: func(e supervise.Event) {
			next := "restarting"
			if e.Failed {
				next = "failed"
			}
			r.log = append(r.log, fmt.Sprintf("%v %s %d delay=%v restarts=%d: %v", time.Since(r.begin), next, r.runs, e.Delay, e.Restarts, e.Err))
		},
	})
	go func() { r.done <- r.Run(ctx) }() // ends with stop, which every test calls through finish
	return r
}

// finish cancels Run and checks that it returns the cause immediately.
func (r *rig) finish(t *testing.T) {
	t.Helper()
	cause := errors.New("the end")
	r.stop(cause)
	before := time.Now()
	if err := <-r.done; !errors.Is(err, cause) {
		t.Errorf("Run returned %v, want the cause", err)
	}
	if d := time.Since(before); d != 0 {
		t.Errorf("Run took %v to return", d)
	}
}

func (r *rig) want(t *testing.T, lines ...string) {
	t.Helper()
	synctest.Wait()
	if !slices.Equal(r.log, lines) {
		t.Errorf("events:\n%q\nwant:\n%q", r.log, lines)
	}
	r.log = nil
}

func crash(d time.Duration) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		ready()
		select {
		case <-time.After(d):
			return errCrash
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func TestCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := supervise.DefaultPolicy()
		p.MaxRestarts = 2
		r := start(t, p, crash(10*time.Second))
		time.Sleep(6 * time.Minute)
		r.want(t,
			"0s starting 1",
			"10s restarting 1 delay=0s restarts=1: crashed",
			"10s starting 2",
			"20s restarting 2 delay=1s restarts=2: crashed",
			"21s starting 3",
			"31s failed 3 delay=5m0s restarts=2: crashed",
			"5m31s starting 4",
			"5m41s failed 4 delay=5m0s restarts=2: crashed",
		)
		r.finish(t)
	})
}

func TestRestartWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, supervise.DefaultPolicy(), crash(time.Hour))
		time.Sleep(time.Second)
		r.Restart()
		r.Restart()
		r.want(t,
			"0s starting 1",
			"1s restarting 1 delay=0s restarts=0: restart requested",
			"1s starting 2",
		)
		r.finish(t)
	})
}

func TestRestartClearsTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := supervise.DefaultPolicy()
		p.MaxRestarts, p.FailedRetry = 1, 0
		r := start(t, p, func(context.Context, func()) error { return errCrash })
		time.Sleep(24 * time.Hour)
		r.want(t,
			"0s starting 1",
			"0s restarting 1 delay=1s restarts=1: crashed",
			"1s starting 2",
			"1s failed 2 delay=0s restarts=1: crashed",
		)
		r.Restart() // in the failed state without a retry
		r.want(t,
			"24h0m0s starting 3",
			"24h0m0s restarting 3 delay=1s restarts=1: crashed",
		)
		r.Restart() // in a backoff
		r.want(t,
			"24h0m0s starting 4",
			"24h0m0s restarting 4 delay=1s restarts=1: crashed",
		)
		r.finish(t)
	})
}

func TestCancelInEachState(t *testing.T) {
	p := supervise.DefaultPolicy()
	crashed := func(context.Context, func()) error { return errCrash }
	for _, tt := range []struct {
		name  string
		run   func(context.Context, func()) error
		after time.Duration
	}{
		{"running", crash(time.Hour), time.Minute},
		{"not yet ready", func(ctx context.Context, _ func()) error { <-ctx.Done(); return ctx.Err() }, time.Minute},
		{"backing off", crashed, 1500 * time.Millisecond},
		{"failed", crashed, 2 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, p, tt.run)
				time.Sleep(tt.after)
				r.finish(t)
				r.Restart() // after the end it does nothing
				n := len(r.log)
				time.Sleep(time.Hour)
				if len(r.log) != n {
					t.Errorf("events after the end: %q", r.log[n:])
				}
			})
		})
	}
}

func TestCancelWaitsForTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := false
		r := start(t, supervise.DefaultPolicy(), func(ctx context.Context, _ func()) error {
			<-ctx.Done()
			time.Sleep(4 * time.Second)
			over = true
			return nil
		})
		synctest.Wait()
		r.stop(nil)
		if err := <-r.done; !errors.Is(err, context.Canceled) || !over {
			t.Errorf("Run returned %v , run returned: %v", err, over)
		}
	})
}

// TestRestartBetweenPhases calls Restart in Notify, between two phases: it must not deadlock, be lost, or cancel the
// run that is about to start.
func TestRestartBetweenPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		var s *supervise.Supervisor
		s = supervise.New(supervise.Options{
			Policy: supervise.Policy{MaxRestarts: 1, RestartWindow: time.Hour, BaseBackoff: time.Hour, MaxBackoff: time.Hour},
			Run: func(ctx context.Context, _ func()) error {
				if ctx.Err() != nil {
					t.Error("a run started with a cancelled context")
				}
				runs++
				if runs == 5 {
					<-ctx.Done()
				}
				return errCrash
			},
			Notify: func(e supervise.Event) { s.Restart() },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		begin := time.Now()
		go func() { done <- s.Run(ctx) }() // ends with cancel below
		synctest.Wait()
		if runs != 5 || time.Since(begin) != 0 {
			t.Errorf("%d runs after %v, want 5 immediately", runs, time.Since(begin))
		}
		cancel()
		<-done
	})
}
