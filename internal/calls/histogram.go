package calls

import (
	"sync/atomic"
	"time"
)

// Bounds are the upper bounds of a Histogram's buckets, from a local tool that answers from memory to one that runs for
// minutes.
var Bounds = [...]time.Duration{
	500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute,
}

// Histogram counts durations. Its zero value is empty. It is safe for concurrent use.
type Histogram struct {
	n   [len(Bounds) + 1]atomic.Uint64
	sum atomic.Int64 // nanoseconds
}

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	i := 0
	for i < len(Bounds) && d > Bounds[i] {
		i++
	}
	h.n[i].Add(1)
	h.sum.Add(int64(d))
}

// Read returns what was counted. The figures are read one after the other, while calls go on.
func (h *Histogram) Read() (d Durations) {
	for i := range h.n {
		d.N[i] = h.n[i].Load()
	}
	d.Sum = time.Duration(h.sum.Load())
	return d
}

// Durations are the counts of a Histogram: N[i] is the number of durations of at most Bounds[i] and longer than the bound
// before it, the last one of those longer than all bounds.
type Durations struct {
	N   [len(Bounds) + 1]uint64
	Sum time.Duration
}

// Add adds the counts of e.
func (d *Durations) Add(e Durations) {
	for i, n := range e.N {
		d.N[i] += n
	}
	d.Sum += e.Sum
}

// Total returns the number of durations.
func (d *Durations) Total() (n uint64) {
	for _, in := range d.N {
		n += in
	}
	return n
}

// Quantile returns a duration that a share q of the durations does not exceed, an estimate between the bounds around it; 0
// if there are no durations. Above the last bound it returns that bound.
func (d *Durations) Quantile(q float64) time.Duration {
	rank, below := q*float64(d.Total()), 0.0
	for i, n := range d.N {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		if i == len(Bounds) {
			break
		}
		low := time.Duration(0)
		if i > 0 {
			low = Bounds[i-1]
		}
		return low + time.Duration((rank-below)/float64(n)*float64(Bounds[i]-low))
	}
	if d.Total() == 0 {
		return 0
	}
	return Bounds[len(Bounds)-1]
}

// Sub returns the durations that were counted after earlier was read.
func (d Durations) Sub(earlier Durations) Durations {
	for i, n := range earlier.N {
		d.N[i] -= n
	}
	d.Sum -= earlier.Sum
	return d
}
