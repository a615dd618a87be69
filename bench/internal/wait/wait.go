// Package wait waits for what is the case in other processes, which nothing can announce.
package wait

import (
	"context"
	"fmt"
	"time"
)

// Until asks until there is no error, every 20 ms at first, then ever more seldom, so that what takes long is not
// held up by the asking: it is known to a fiftieth of what it took. The error after within says what was waited for,
// and what was the matter last.
func Until(ctx context.Context, within time.Duration, what string, cond func() error) error {
	for start := time.Now(); ; {
		err := cond()
		if err == nil {
			return nil
		}
		passed := time.Since(start)
		if passed > within {
			return fmt.Errorf("after %s still waiting until %s: %w", within, what, err)
		}
		if !For(ctx, max(20*time.Millisecond, passed/50)) {
			return ctx.Err()
		}
	}
}

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
