// Package load calls a function from many goroutines for a while and measures how long the calls took. extctl bench
// and the benchmark table use it.
//
//	r := load.Run(ctx, load.Options{Callers: 64, For: time.Second}, func(ctx context.Context) error { … })
//	fmt.Println(r.Quantile(0.5), r.Quantile(0.99), r.Rate())
//
// Every successful call's duration is kept, for medians and tails that a mean would hide; failed calls are counted
// separately.
package load

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options set how many calls are made. With neither For nor Calls, Run continues until its context ends.
type Options struct {
	Callers int                // goroutines; default 1
	For     time.Duration      // no call is started after this time
	Calls   int                // at most this many calls are started
	Rate    float64            // calls per second, all callers together; 0: no pause between calls
	Kind    func(error) string // classifies errors; default: all are "error"
	Done    *atomic.Int64      // counts the calls that have ended, for a progress bar; may be nil
}

// Result is what Run measured.
type Result struct {
	Took    []time.Duration // of the calls that succeeded, sorted
	Errors  map[string]int  // of the calls that failed, by kind
	Elapsed time.Duration
}

// Run calls f from Options.Callers goroutines and returns when all calls have ended. It waits for calls in flight
// when ctx or the time ends.
func Run(ctx context.Context, o Options, f func(context.Context) error) Result {
	callers := make([]Result, max(1, o.Callers))
	began := time.Now()
	var until time.Time
	if o.For > 0 {
		until = began.Add(o.For)
	}
	var started atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { // ends with the load; Run waits
			r := &callers[i]
			p := newPacer(o, began, i)
			defer p.stop()
			for at := time.Now(); p.wait(ctx, &at) && ctx.Err() == nil && (until.IsZero() || at.Before(until)); {
				if o.Calls > 0 && started.Add(1) > int64(o.Calls) {
					return
				}
				err := f(ctx)
				now := time.Now()
				if err != nil {
					r.fail(o.Kind, err)
				} else {
					r.Took = append(r.Took, now.Sub(at))
				}
				if o.Done != nil {
					o.Done.Add(1)
				}
				at = now
			}
		})
	}
	wg.Wait()
	all := Result{Elapsed: time.Since(began), Errors: map[string]int{}}
	for _, r := range callers {
		all.Took = append(all.Took, r.Took...)
		for kind, n := range r.Errors {
			all.Errors[kind] += n
		}
	}
	slices.Sort(all.Took)
	return all
}

// pacer determines when a caller makes its calls under Options.Rate: at even intervals, interleaved with the other
// callers. A late caller makes its calls without a delay until it has caught up. The zero pacer does not wait.
type pacer struct {
	next  time.Time
	every time.Duration
	timer *time.Timer
}

func newPacer(o Options, began time.Time, caller int) *pacer {
	if o.Rate <= 0 {
		return &pacer{}
	}
	callers := float64(max(1, o.Callers))
	every := time.Duration(float64(time.Second) * callers / o.Rate)
	return &pacer{next: began.Add(time.Duration(float64(every) * float64(caller) / callers)), every: every, timer: time.NewTimer(0)}
}

// wait waits for the next time and sets at to the time when it returns. It reports false if ctx ended first.
func (p *pacer) wait(ctx context.Context, at *time.Time) bool {
	if p.timer == nil {
		return true
	}
	p.timer.Reset(time.Until(p.next))
	p.next = p.next.Add(p.every)
	select {
	case <-p.timer.C:
		*at = time.Now()
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *pacer) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}

func (r *Result) fail(kind func(error) string, err error) {
	if r.Errors == nil {
		r.Errors = map[string]int{}
	}
	k := "error"
	if kind != nil {
		k = kind(err)
	}
	r.Errors[k]++
}

// Quantile returns the time that a share q (0.5, 0.99, 1) of the successful calls did not exceed; 0 without calls.
func (r Result) Quantile(q float64) time.Duration {
	if len(r.Took) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(r.Took)))) - 1
	return r.Took[min(max(i, 0), len(r.Took)-1)]
}

// Rate returns how many calls succeeded per second.
func (r Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(len(r.Took)) / r.Elapsed.Seconds()
}

// Failed returns how many calls failed.
func (r Result) Failed() int {
	n := 0
	for _, k := range r.Errors {
		n += k
	}
	return n
}

// Bucket is a bar of a histogram: the number of calls that took at most UpTo and longer than the previous bar.
type Bucket struct {
	UpTo  time.Duration
	Count int
}

// Histogram sorts the successful calls into at most n buckets, each twice as wide as the previous one, and omits the
// empty ones at both ends.
func (r Result) Histogram(n int) []Bucket {
	if len(r.Took) == 0 || n < 1 {
		return nil
	}
	top := time.Microsecond
	for top < r.Took[len(r.Took)-1] {
		top *= 2
	}
	bounds := []time.Duration{top}
	for len(bounds) < n && bounds[0]/2 >= r.Took[0] {
		bounds = append([]time.Duration{bounds[0] / 2}, bounds...)
	}
	out := make([]Bucket, len(bounds))
	i := 0
	for j, b := range bounds {
		out[j].UpTo = b
		for i < len(r.Took) && r.Took[i] <= b {
			out[j].Count++
			i++
		}
	}
	return out
}
