// Package pause waits for some time, or until a context is done.
package pause

import (
	"context"
	"time"
)

// For waits for d and reports true, or false as soon as ctx is done.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
