package bridge

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// credentials shows in the reason of a ready instance that its server refuses calls over HTTP for who makes them. Such a
// server may answer initialize and ping all the same, so that nothing else in the catalog would tell.
type credentials struct {
	show  func(reason string) // sets the reason of an instance that is ready
	since atomic.Int64        // unix nanoseconds of the first refusal; 0: calls are accepted
}

// showRefusal is how long a refusal is shown at least: where some tools are refused and others are not, the catalog is not
// to change with each call.
const showRefusal = 30 * time.Second

// refused takes the error of a call.
func (c *credentials) refused(e *rpc.Error) {
	switch status, _, _ := strings.Cut(e.Details().Status, " "); status {
	case "401", "403", "407":
		if c.since.CompareAndSwap(0, time.Now().UnixNano()) {
			c.show("a call was refused: " + e.Message)
		}
	}
}

// accepted takes note that a call was answered.
func (c *credentials) accepted() {
	since := c.since.Load()
	if since != 0 && time.Now().UnixNano()-since > int64(showRefusal) && c.since.CompareAndSwap(since, 0) {
		c.show("")
	}
}
