package bridge

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// credentials sets the reason of a ready instance while its HTTP server rejects the credentials of calls. Such a server
// may still accept initialize and ping, so that nothing else in the catalog would show the problem.
type credentials struct {
	show    func(reason string) // sets the reason of a ready instance
	since   atomic.Int64        // unix nanoseconds of the first rejected call; 0: calls are accepted
	renew   func()              // starts a new run if the files with the credentials have changed
	renewed atomic.Int64        // unix nanoseconds of the last call of renew
}

// renewEvery is the minimum time between two looks at the files.
const renewEvery = time.Second

// showRefusal is the minimum time for which a rejection is shown. If only some tools are rejected, the catalog must not
// change with every call.
const showRefusal = 30 * time.Second

// refused records the error of a failed call.
func (c *credentials) refused(e *rpc.Error) {
	switch status, _, _ := strings.Cut(e.Details().Status, " "); status {
	case "401", "403", "407":
		if last, now := c.renewed.Load(), time.Now().UnixNano(); now-last > int64(renewEvery) && c.renewed.CompareAndSwap(last, now) {
			c.renew()
		}
		if c.since.CompareAndSwap(0, time.Now().UnixNano()) {
			c.show("a call was refused: " + e.Message)
		}
	}
}

// accepted records a successful call.
func (c *credentials) accepted() {
	since := c.since.Load()
	if since != 0 && time.Now().UnixNano()-since > int64(showRefusal) && c.since.CompareAndSwap(since, 0) {
		c.show("")
	}
}
