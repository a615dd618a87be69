package serve

import (
	"sync/atomic"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Counts are the counters of an instance, since it was created, over all its processes.
type Counts struct {
	Calls    uint64 // requests that arrived, including refused ones
	InFlight int64  // calls that are being handled
	Restarts uint64 // processes after the first one

	// ByKind are the errors by data.kind (docs/protocol.md, "Errors"), with all kinds; the extension's own errors have
	// calls.Own, and MCP results with isError, which count as errors, calls.ToolError.
	ByKind map[string]uint64

	// Took are the times from the arrival of the request to its answer, including failed calls, without those that were
	// refused on arrival.
	Took calls.Durations
}

// countedCodes are the codes with a counter of their own.
var countedCodes = [...]rpc.Code{
	rpc.CodeParse, rpc.CodeInvalidRequest, rpc.CodeMethodNotFound, rpc.CodeInvalidParams, rpc.CodeInternal,
	rpc.CodeExited, rpc.CodeTimeout, rpc.CodeUnavailable, rpc.CodeBreakerOpen, rpc.CodeOverloaded, rpc.CodeTooLarge, rpc.CodeCancelled,
}

// counters count calls.
type counters struct {
	failed [len(countedCodes)]atomic.Uint64 // errors that the mesh made, by code
	own    atomic.Uint64                    // the extension's
	tool   atomic.Uint64                    // results that state that the tool failed
	took   calls.Histogram
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

// Counts returns what the instance has counted. The figures are read one after the other, while calls go on.
func (s *Instance) Counts() Counts {
	c := Counts{Restarts: s.machine.Status().Restarts()}
	c.Calls, c.InFlight = s.calls.Load(), s.inflight.Load()
	c.ByKind = map[string]uint64{calls.Own: s.counters.own.Load(), calls.ToolError: s.counters.tool.Load()}
	for i, code := range countedCodes {
		c.ByKind[code.Kind()] = s.counters.failed[i].Load()
	}
	c.Took = s.counters.took.Read()
	return c
}
