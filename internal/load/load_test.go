package load

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		r := Run(t.Context(), Options{Callers: 4, For: time.Second, Kind: error.Error}, func(context.Context) error {
			time.Sleep(100 * time.Millisecond)
			if n.Add(1)%4 == 0 {
				return errors.New("fourth")
			}
			return nil
		})
		if len(r.Took) != 30 || r.Errors["fourth"] != 10 || r.Failed() != 10 || r.Elapsed != time.Second {
			t.Errorf("%d calls, errors %v in %s, want 30 and 10 in 1s", len(r.Took), r.Errors, r.Elapsed)
		}
		if r.Rate() != 30 || r.Quantile(0.5) != 100*time.Millisecond || r.Quantile(1) != 100*time.Millisecond {
			t.Errorf("rate %v, median %v", r.Rate(), r.Quantile(0.5))
		}
		if r := Run(t.Context(), Options{Callers: 3, Calls: 10}, func(context.Context) error { return nil }); len(r.Took) != 10 {
			t.Errorf("%d calls, want 10", len(r.Took))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r := Run(ctx, Options{}, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }); r.Failed() != 1 || r.Errors["error"] != 1 {
			t.Errorf("a run ended by its context: %+v", r)
		}
	})
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var starts []time.Duration
		began := time.Now()
		r := Run(t.Context(), Options{Callers: 4, Rate: 40, For: 990 * time.Millisecond}, func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			starts = append(starts, time.Since(began))
			return nil
		})
		for i, at := range starts {
			if want := time.Duration(i) * 25 * time.Millisecond; at != want {
				t.Fatalf("call %d was made at %s, want %s", i, at, want)
			}
		}
		if len(starts) != 40 || len(r.Took) != 40 {
			t.Errorf("%d calls, %d measured, want 40", len(starts), len(r.Took))
		}
		// Two callers with calls that take twice as long as their interval: late callers do not wait.
		r = Run(t.Context(), Options{Callers: 2, Rate: 20, For: time.Second}, func(context.Context) error {
			time.Sleep(200 * time.Millisecond)
			return nil
		})
		if len(r.Took) != 10 || r.Elapsed > 1100*time.Millisecond {
			t.Errorf("%d calls in %s, want 10 in 1.05s", len(r.Took), r.Elapsed)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r := Run(ctx, Options{Callers: 1, Rate: 0.1}, func(context.Context) error { return nil }); len(r.Took) != 1 || r.Elapsed != time.Second {
			t.Errorf("a run that its context ends between two calls: %d calls in %s", len(r.Took), r.Elapsed)
		}
	})
}

func TestQuantiles(t *testing.T) {
	var r Result
	for i := range 100 {
		r.Took = append(r.Took, time.Duration(i+1)*time.Microsecond)
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.9: 90, 0.99: 99, 1: 100} {
		if got := r.Quantile(q); got != want*time.Microsecond {
			t.Errorf("quantile %v = %v, want %vµs", q, got, int64(want))
		}
	}
	if (Result{}).Quantile(0.5) != 0 || (Result{}).Rate() != 0 || (Result{}).Histogram(5) != nil {
		t.Error("a result without calls has a quantile, a rate or a histogram")
	}
	total := 0
	for _, b := range r.Histogram(4) {
		total += b.Count
	}
	if h := r.Histogram(4); total != 100 || len(h) != 4 || h[3].UpTo != 128*time.Microsecond || h[3].Count != 36 || h[0].Count != 16 {
		t.Errorf("histogram %v", h)
	}
}
