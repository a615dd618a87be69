package daemon

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestSignalsSentTwice: two signals within a second count as one, because timeout(1) sends one to the process and one to its
// group.
func TestSignalsSentTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, signalled := context.WithCancel(t.Context())
		var stopped atomic.Bool
		stopLater(ctx, func() { stopped.Store(true) })
		time.Sleep(time.Hour)
		signalled()
		time.Sleep(sameSignal - 1)
		if synctest.Wait(); stopped.Load() {
			t.Error("a second signal would exit immediately")
		}
		time.Sleep(time.Nanosecond)
		if synctest.Wait(); !stopped.Load() {
			t.Error("a signal a second later would be ignored")
		}
	})
}
