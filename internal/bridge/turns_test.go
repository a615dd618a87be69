package bridge

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// TestStartTurns: of many starts as many as there are turns run at once, in order, and a restart does not wait for first starts.
func TestStartTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newStartTurns(2)
		var mu sync.Mutex
		var order []string
		var shown []int
		var all sync.WaitGroup
		begin := func(name string, again bool) {
			all.Go(func() { // ends when it had its turn
				release, err := turns.take(t.Context(), again, func(before int) {
					if name == "5" {
						mu.Lock()
						defer mu.Unlock()
						shown = append(shown, before)
					}
				})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, name)
				turn := time.Second + time.Duration(len(order))*time.Millisecond // so that no two end at once
				mu.Unlock()
				time.Sleep(turn)
				release()
				release()
			})
			synctest.Wait()
		}
		for i := range 6 {
			begin(fmt.Sprint(i), false)
		}
		begin("again", true)
		all.Wait()
		if want := []string{"0", "1", "again", "2", "3", "4", "5"}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
		if want := []int{5}; !slices.Equal(shown, want) {
			t.Errorf("the last one is shown waiting for %v others, want %v", shown, want)
		}
		checkAllReturned(t, turns)
	})
}

// TestStartTurnsRandom: whoever ends, in whatever order, no more than the limit run, or twice as many with restarts, and no turn
// is lost.
func TestStartTurnsRandom(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			turns := newStartTurns(3)
			var mu sync.Mutex
			running, first, most, had := 0, 0, 0, 0
			var all sync.WaitGroup
			for range 40 {
				patience, takes, again := time.Duration(1+random.IntN(30_000))*time.Millisecond, time.Duration(random.IntN(3000))*time.Millisecond, random.IntN(3) == 0
				all.Go(func() { // ends when it had its turn or its patience is over
					ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errHung)
					defer cancel()
					release, err := turns.take(ctx, again, func(int) {})
					if err != nil {
						if !errors.Is(err, errHung) {
							t.Error(err)
						}
						return
					}
					mu.Lock()
					running, had = running+1, had+1
					if !again {
						first++
					}
					if most = max(most, running); first > 3 {
						t.Errorf("seed %d: %d first starts at once", seed, first)
					}
					mu.Unlock()
					time.Sleep(takes)
					mu.Lock()
					running--
					if !again {
						first--
					}
					mu.Unlock()
					release()
				})
			}
			all.Wait()
			if most > 6 || had < 3 {
				t.Errorf("seed %d: %d at once, %d had a turn", seed, most, had)
			}
			checkAllReturned(t, turns)
		})
	}
}

func checkAllReturned(t *testing.T, s *startTurns) {
	t.Helper()
	for _, turns := range []*turns{&s.first, &s.again} {
		if taken, waiting := len(turns.taken), turns.waiting.Load(); taken != 0 || waiting != 0 {
			t.Errorf("%d turns are left taken, %d starts wait", taken, waiting)
		}
	}
}

// workingUntil returns the activity of processes that work for some time after now.
func workingUntil(end time.Duration) func() child.Activity {
	began := time.Now()
	return func() child.Activity { return child.Activity{CPU: min(time.Since(began), end), Known: true} }
}

// TestStartLimits: a start that hangs fails after its time, one that works may go on, and none longer than the maximum.
func TestStartLimits(t *testing.T) {
	limit := config.StartLimit{Idle: 30 * time.Second, Max: 5 * time.Minute}
	for name, tt := range map[string]struct {
		limit  config.StartLimit
		works  time.Duration
		ready  bool // it was ready before
		takes  time.Duration
		want   string
		turned time.Duration // when it gives up its turn
	}{
		"it hangs":                          {limit, 0, false, 30 * time.Second, "it did not answer initialize within 30s", 3 * time.Second},
		"it works for a while":              {limit, 90 * time.Second, false, 98 * time.Second, "it did not answer initialize within 1m38s, and its processes have stopped working", 93 * time.Second},
		"it works for ever":                 {limit, time.Hour, false, 5 * time.Minute, "it did not answer initialize within 5m0s", 0},
		"it works, and was ready before":    {limit, time.Hour, true, 30 * time.Second, "it did not answer initialize within 30s", 0},
		"it works longer than it may":       {config.StartLimit{Idle: time.Minute, Max: time.Minute}, time.Hour, false, time.Minute, "it did not answer initialize within 1m0s", 0},
		"it has less time than one reading": {config.StartLimit{Idle: 200 * time.Millisecond, Max: 200 * time.Millisecond}, 0, false, 200 * time.Millisecond, "it did not answer initialize within 200ms", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &instance{workload: &workload{limits: limits{start: tt.limit}}}
				s.history.ready = tt.ready
				var turned time.Duration
				began := time.Now()
				st := start{workingUntil(tt.works), func() { turned = time.Since(began) }}
				failed := make(chan error, 1)
				stop := (&run{inst: s, start: st}).watchStart(t.Context(), &stepRecorder{}, func(err error) { failed <- err })
				if err := <-failed; err.Error() != tt.want || time.Since(began) != tt.takes {
					t.Errorf("after %s: %v; want after %s: %s", time.Since(began), err, tt.takes, tt.want)
				}
				stop()
				if turned != tt.turned {
					t.Errorf("it gave up its turn after %s, want %s", turned, tt.turned)
				}
			})
		})
	}
}

// TestStartText: the reason names a launcher that is installing, and otherwise the request that was not answered.
func TestStartText(t *testing.T) {
	for _, tt := range []struct {
		transport manifest.Transport
		step      string
		want      string
	}{
		{manifest.Transport{Command: "npx", Args: []string{"-y", "server"}}, "initialize", "starting: npx is installing, 12 s"},
		{manifest.Transport{Command: "npx", Args: []string{"-y", "server"}}, "tools/list", "starting: no response to tools/list yet, 12 s"},
		{manifest.Transport{Command: "./server"}, "initialize", "starting: no response to initialize yet, 12 s"},
	} {
		r := &run{inst: &instance{workload: &workload{transport: tt.transport}}}
		if got := r.startText(tt.step, 12*time.Second); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
