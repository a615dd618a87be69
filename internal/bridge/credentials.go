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
	show    func(reason string)       // sets the reason of a ready instance
	since   atomic.Pointer[time.Time] // of the first rejected call; nil: calls are accepted
	renew   func()                    // starts a new run if the files with the credentials have changed
	renewed atomic.Pointer[time.Time] // the last call of renew
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
		now := time.Now()
		if last := c.renewed.Load(); (last == nil || now.Sub(*last) > renewEvery) && c.renewed.CompareAndSwap(last, &now) {
			c.renew()
		}
		if c.since.CompareAndSwap(nil, &now) {
			c.show("a call was refused: " + e.Message)
		}
	}
}

// accepted records a successful call.
func (c *credentials) accepted() {
	since := c.since.Load()
	if since != nil && time.Since(*since) > showRefusal && c.since.CompareAndSwap(since, nil) {
		c.show("")
	}
}
