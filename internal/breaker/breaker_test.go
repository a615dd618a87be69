package breaker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// rig is a breaker with a log of its changes.
type rig struct {
	*Breaker
	t     *testing.T
	begin time.Time
	log   []string
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, begin: time.Now()}
	r.Breaker = New("ext:stdio:test", Settings{OnChange: func(s heartbeat.BreakerState, at time.Time) {
		line := fmt.Sprintf("%v %s", time.Since(r.begin), s)
		if !at.IsZero() {
			line += fmt.Sprintf(" until %v", at.Sub(r.begin))
		}
		r.log = append(r.log, line)
	}})
	return r
}

// call makes calls with the given outcomes; each must be admitted.
func (r *rig) call(outcomes ...Outcome) {
	r.t.Helper()
	for _, o := range outcomes {
		r.acquire().Done(o)
	}
}

func (r *rig) acquire() Token {
	r.t.Helper()
	tok, err := r.Acquire()
	if err != nil {
		r.t.Fatal(err)
	}
	return tok
}

// refused checks that a call is refused, with the time to try again.
func (r *rig) refused(s heartbeat.BreakerState, retryIn time.Duration) {
	r.t.Helper()
	_, err := r.Acquire()
	var e *OpenError
	if !errors.As(err, &e) {
		r.t.Fatalf("got %v, want a refusal", err)
	}
	if e.Name != "ext:stdio:test" || e.State != s || time.Until(e.RetryAt) != retryIn {
		r.t.Fatalf("got %+v, retry in %v; want %s, %v", e, time.Until(e.RetryAt), s, retryIn)
	}
}

func (r *rig) state(want heartbeat.BreakerState, retryIn time.Duration) {
	r.t.Helper()
	got, at := r.State()
	if got != want || at.IsZero() != (retryIn == 0) || !at.IsZero() && time.Until(at) != retryIn {
		r.t.Fatalf("state is %s until %v, want %s for %v", got, at, want, retryIn)
	}
}

func (r *rig) changes(want ...string) {
	r.t.Helper()
	if !slices.Equal(r.log, want) {
		r.t.Errorf("changes %q\nwant %q", r.log, want)
	}
	r.log = nil
}

// open opens the breaker, as of now, for 10 s.
func (r *rig) open() {
	r.t.Helper()
	r.call(Failure, Failure, Failure, Failure, Failure)
	r.state(heartbeat.BreakerOpen, 10*time.Second)
}

func inBubble(t *testing.T, test func(r *rig)) {
	synctest.Test(t, func(t *testing.T) { test(newRig(t)) })
}

func TestOnlyFailuresInARowOpen(t *testing.T) {
	inBubble(t, func(r *rig) {
		for range 100 {
			r.call(Failure, Failure, Failure, Failure, Success)
		}
		r.call(Failure, Failure, Neutral, Failure, Neutral, Failure)
		r.state(heartbeat.BreakerClosed, 0)
		r.call(Failure)
		r.state(heartbeat.BreakerOpen, 10*time.Second)
		r.refused(heartbeat.BreakerOpen, 10*time.Second)
		time.Sleep(4 * time.Second)
		r.refused(heartbeat.BreakerOpen, 6*time.Second)
		r.changes("0s open until 10s")
	})
}

func TestTwoProbesClose(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.open()
		time.Sleep(10 * time.Second)
		r.state(heartbeat.BreakerHalfOpen, 0)
		probe := r.acquire()
		r.refused(heartbeat.BreakerHalfOpen, time.Second) // one at a time
		probe.Done(Success)
		probe.Done(Success) // only the first Done counts
		r.state(heartbeat.BreakerHalfOpen, 0)
		r.call(Success)
		r.state(heartbeat.BreakerClosed, 0)
		r.changes("0s open until 10s", "10s half-open", "10s closed")
		r.open() // and the delay starts with the first one again
	})
}

func TestDelayDoubles(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.open()
		for _, d := range []time.Duration{10, 20, 40, 80, 120, 120} {
			d *= time.Second
			r.refused(heartbeat.BreakerOpen, d)
			time.Sleep(d - 1)
			r.refused(heartbeat.BreakerOpen, 1)
			time.Sleep(time.Nanosecond)
			r.call(Failure)
		}
		time.Sleep(2 * time.Minute)
		r.call(Success, Failure) // one successful probe does not reset the delay
		r.refused(heartbeat.BreakerOpen, 2*time.Minute)
		time.Sleep(2 * time.Minute)
		r.call(Success, Success)
		r.open()
	})
}

// A neutral probe releases its slot every time, and does not count.
func TestNeutralProbe(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.open()
		time.Sleep(10 * time.Second)
		for range 10 {
			r.call(Neutral)
		}
		r.state(heartbeat.BreakerHalfOpen, 0)
		r.call(Success, Neutral, Success)
		r.state(heartbeat.BreakerClosed, 0)
	})
}

func TestPanickingProbe(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.open()
		time.Sleep(10 * time.Second)
		func() {
			defer func() { recover() }()
			tok := r.acquire()
			outcome := Neutral
			defer func() { tok.Done(outcome) }()
			panic("in the call")
		}()
		r.call(Success, Success)
		r.state(heartbeat.BreakerClosed, 0)
	})
}

// A probe that never ends blocks others for the delay only. The first that ends with a result counts.
func TestLostProbe(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.open()
		time.Sleep(10 * time.Second)
		lost := r.acquire()
		time.Sleep(20*time.Second - 500*time.Millisecond)
		r.refused(heartbeat.BreakerHalfOpen, 500*time.Millisecond)
		time.Sleep(500 * time.Millisecond)
		next := r.acquire()
		r.refused(heartbeat.BreakerHalfOpen, time.Second)
		lost.Done(Success) // slow, but it counts
		next.Done(Failure) // only the first that ends
		r.state(heartbeat.BreakerHalfOpen, 0)
		r.call(Success)
		r.state(heartbeat.BreakerClosed, 0)

		r.open()
		time.Sleep(10 * time.Second)
		lost = r.acquire()
		time.Sleep(20 * time.Second)
		r.acquire().Done(Neutral)
		lost.Done(Failure)
		r.refused(heartbeat.BreakerOpen, 20*time.Second)
	})
}

// Calls that began in an earlier state change nothing, whatever their outcome.
func TestStaleCalls(t *testing.T) {
	inBubble(t, func(r *rig) {
		var early []Token
		for range 20 {
			early = append(early, r.acquire())
		}
		all := func(o Outcome) {
			for _, tok := range early {
				tok.Done(o)
			}
		}
		r.open()
		all(Success)
		r.refused(heartbeat.BreakerOpen, 10*time.Second)
		time.Sleep(10 * time.Second)
		probe := r.acquire()
		all(Success)
		r.refused(heartbeat.BreakerHalfOpen, time.Second)
		all(Failure)
		probe.Done(Success)
		r.call(Success)
		all(Failure)
		r.state(heartbeat.BreakerClosed, 0)
		Token{}.Done(Failure)
	})
}

func TestCloseAndHalfOpenByHand(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.HalfOpen() // not when closed
		r.Close()
		r.changes()
		r.call(Failure, Failure, Failure, Failure)
		r.Close() // clears the failures
		r.call(Failure, Failure, Failure, Failure)
		r.changes()
		early := r.acquire()
		r.Close()
		early.Done(Failure)
		r.state(heartbeat.BreakerClosed, 0)
		r.open()
		r.HalfOpen()
		probe := r.acquire()
		r.HalfOpen() // has no effect on the probe
		r.refused(heartbeat.BreakerHalfOpen, time.Second)
		probe.Done(Failure)
		r.refused(heartbeat.BreakerOpen, 20*time.Second)
		r.Close()
		r.open()
		r.changes("0s open until 10s", "0s half-open", "0s open until 20s", "0s closed", "0s open until 10s")
	})
}

// OnChange may call the breaker, and receives the changes after a panic too.
func TestOnChangeCallsBack(t *testing.T) {
	var b *Breaker
	var seen []heartbeat.BreakerState
	b = New("x", Settings{Threshold: 1, OnChange: func(s heartbeat.BreakerState, _ time.Time) {
		seen = append(seen, s)
		if s == heartbeat.BreakerOpen {
			b.HalfOpen()
			b.Close()
			panic("in OnChange")
		}
	}})
	for range 2 {
		func() {
			defer func() { recover() }()
			tok, _ := b.Acquire()
			tok.Done(Failure)
		}()
	}
	if want := []heartbeat.BreakerState{"open", "half-open", "closed", "open", "half-open", "closed"}; !slices.Equal(seen, want) {
		t.Errorf("changes %v, want %v", seen, want)
	}
}

func TestDefaults(t *testing.T) { synctest.Test(t, defaults) }

func defaults(t *testing.T) {
	b := New("x", Settings{Delay: time.Hour}) // longer than the default MaxDelay: stays as it is
	for range 5 {
		tok, _ := b.Acquire()
		tok.Done(Failure)
	}
	_, err := b.Acquire()
	if err == nil || !strings.HasPrefix(err.Error(), "breaker x is open, retry in 59m59") && !strings.HasPrefix(err.Error(), "breaker x is open, retry in 1h0m0") {
		t.Errorf("got %v", err)
	}
	b.HalfOpen()
	tok, _ := b.Acquire()
	tok.Done(Failure)
	if _, at := b.State(); time.Until(at) > time.Hour {
		t.Errorf("open for %v", time.Until(at))
	}
}

// Many concurrent callers in all states: never more than one probe, and the breaker closes in the end.
func TestConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		b := New("x", Settings{})
		healthy := false
		probes := 0
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() { // ends after its calls
				for j := range 200 {
					time.Sleep(time.Duration(i*j%37) * 10 * time.Millisecond)
					tok, err := b.Acquire()
					if err != nil {
						continue
					}
					mu.Lock()
					if tok.probe {
						if probes++; probes > 1 {
							t.Error("two probes at once")
						}
					}
					ok := healthy
					mu.Unlock()
					time.Sleep(time.Duration(j%5) * time.Millisecond)
					mu.Lock()
					if tok.probe {
						probes--
					}
					mu.Unlock()
					switch {
					case j%3 == 0:
						tok.Done(Neutral)
					case ok:
						tok.Done(Success)
					default:
						tok.Done(Failure)
					}
				}
			})
		}
		time.Sleep(25 * time.Second)
		if s, _ := b.State(); s == heartbeat.BreakerClosed {
			t.Error("closed, though everything fails")
		}
		mu.Lock()
		healthy = true
		mu.Unlock()
		time.Sleep(20 * time.Second)
		for range 4 {
			if tok, err := b.Acquire(); err == nil {
				tok.Done(Success)
			}
		}
		wg.Wait()
		if s, _ := b.State(); s != heartbeat.BreakerClosed {
			t.Errorf("state %s", s)
		}
	})
}

func BenchmarkClosed(b *testing.B) {
	br := New("x", Settings{})
	b.ReportAllocs()
	for b.Loop() {
		tok, err := br.Acquire()
		if err != nil {
			b.Fatal(err)
		}
		tok.Done(Success)
	}
}

func BenchmarkClosedParallel(b *testing.B) {
	br := New("x", Settings{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if tok, err := br.Acquire(); err == nil {
				tok.Done(Success)
			}
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	br := New("x", Settings{Threshold: 1})
	tok, _ := br.Acquire()
	tok.Done(Failure)
	b.ReportAllocs()
	for b.Loop() {
		br.Acquire()
	}
}

func TestClosedAllocatesNothing(t *testing.T) {
	b := New("x", Settings{})
	if n := testing.AllocsPerRun(1000, func() {
		tok, _ := b.Acquire()
		tok.Done(Success)
	}); n > 0 {
		t.Errorf("%v allocations a call", n)
	}
}

func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for err, want := range map[error]time.Duration{
			&OpenError{RetryAt: time.Now().Add(time.Second)}:                              time.Second,
			&OpenError{RetryAt: time.Now().Add(time.Millisecond + 1)}:                     2 * time.Millisecond,
			&OpenError{RetryAt: time.Now().Add(-time.Second)}:                             0,
			errors.New("something else"):                                                  0,
			fmt.Errorf("wrapped: %w", &OpenError{RetryAt: time.Now().Add(2 * time.Hour)}): 2 * time.Hour,
		} {
			if got := RetryAfter(err); got != want {
				t.Errorf("%v: %s, want %s", err, got, want)
			}
		}
	})
}
