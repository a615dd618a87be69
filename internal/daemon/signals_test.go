package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestSignalsSentTwice: two signals within a second count as one, because timeout(1) sends one to the process and one to its
// group.
func TestSignalsSentTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, signalled := context.WithCancel(t.Context())
		stopped := false
		stopLater(ctx, func() { stopped = true })
		time.Sleep(time.Hour)
		signalled()
		time.Sleep(sameSignal - 1)
		if synctest.Wait(); stopped {
			t.Error("a second signal would exit immediately")
		}
		time.Sleep(time.Nanosecond)
		if synctest.Wait(); !stopped {
			t.Error("a signal a second later would be ignored")
		}
	})
}
