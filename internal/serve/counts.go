package serve

import (
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// Counts are the counters of an instance, since it was created, over all its processes.
type Counts struct {
	Calls    uint64 // requests that arrived, including refused ones
	Errors   uint64 // of these, answered with an error, of the mesh or of the extension
	InFlight int64  // calls that are being handled
	Restarts uint64 // processes after the first one

	// ByKind are the errors by data.kind (docs/protocol.md, "Errors"), with all kinds; the extension's own errors have
	// KindOwn.
	ByKind map[string]uint64

	// Took[i] is the number of calls that took at most TookBounds[i] and longer than the bound before it; the last one those
	// that took longer than all bounds. The time is from the arrival of the request to its answer, including failed calls,
	// without those that were refused on arrival.
	Took [len(TookBounds) + 1]uint64
	// TookSum is all of that time together.
	TookSum time.Duration
}

// KindOwn is the kind, in Counts, of an extension's own errors.
const KindOwn = "extension"

// TookBounds are the upper bounds of Counts.Took, from a local tool that answers from memory to one that runs for minutes.
var TookBounds = [...]time.Duration{
	500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute,
}

// countedCodes are the codes with a counter of their own.
var countedCodes = [...]rpc.Code{
	rpc.CodeParse, rpc.CodeInvalidRequest, rpc.CodeMethodNotFound, rpc.CodeInvalidParams, rpc.CodeInternal,
	rpc.CodeExited, rpc.CodeTimeout, rpc.CodeUnavailable, rpc.CodeBreakerOpen, rpc.CodeOverloaded, rpc.CodeTooLarge, rpc.CodeCancelled,
}

// counters count calls.
type counters struct {
	failed  [len(countedCodes)]atomic.Uint64 // errors that the mesh made, by code
	own     atomic.Uint64                    // the extension's
	took    [len(TookBounds) + 1]atomic.Uint64
	tookSum atomic.Int64 // nanoseconds
}

// refused counts an error that the mesh made.
func (c *counters) refused(code rpc.Code) {
	for i, counted := range countedCodes {
		if counted == code {
			c.failed[i].Add(1)
			return
		}
	}
	c.own.Add(1) // not one of the mesh's codes
}

// end counts a call that took d.
func (c *counters) end(d time.Duration) {
	i := 0
	for i < len(TookBounds) && d > TookBounds[i] {
		i++
	}
	c.took[i].Add(1)
	c.tookSum.Add(int64(d))
}

// Counts returns what the instance has counted. The figures are read one after the other, while calls go on.
func (s *Instance) Counts() Counts {
	c := Counts{Restarts: s.machine.Status().Restarts()}
	c.Calls, c.Errors, c.InFlight = s.calls.Load(), s.errors.Load(), s.inflight.Load()
	c.ByKind = map[string]uint64{KindOwn: s.counters.own.Load()}
	for i, code := range countedCodes {
		c.ByKind[code.Kind()] = s.counters.failed[i].Load()
	}
	for i := range s.counters.took {
		c.Took[i] = s.counters.took[i].Load()
	}
	c.TookSum = time.Duration(s.counters.tookSum.Load())
	return c
}
