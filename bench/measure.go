package main

import (
	"slices"
	"sync"
	"time"
)

// figure is what one operation costs under some load.
type figure struct {
	p50, p99 time.Duration
	rate     float64 // a second
}

// measure runs op from so many callers for a while.
func measure(callers int, span time.Duration, op func() error) (figure, error) {
	type caller struct {
		took []time.Duration
		err  error
	}
	all := make([]caller, callers)
	began := time.Now()
	until := began.Add(span)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { // ends at until, or with an error
			c := &all[i]
			for last := time.Now(); last.Before(until); {
				if c.err = op(); c.err != nil {
					return
				}
				now := time.Now()
				c.took = append(c.took, now.Sub(last))
				last = now
			}
		})
	}
	wg.Wait()
	total := time.Since(began)
	var took []time.Duration
	for _, c := range all {
		if c.err != nil {
			return figure{}, c.err
		}
		took = append(took, c.took...)
	}
	slices.Sort(took)
	return figure{
		p50: took[len(took)/2], p99: took[len(took)*99/100],
		rate: float64(len(took)) / total.Seconds(),
	}, nil
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
