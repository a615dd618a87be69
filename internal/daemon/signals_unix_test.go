//go:build unix

package daemon

import (
	"syscall"
	"testing"
	"time"
)

// Two signals within a second count as one, because timeout(1) sends one to the process and one to its group. The
// default action would end this test.
func TestSignalsSentTwice(t *testing.T) {
	ctx, stop := Signals(t.Context())
	defer stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 20 {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-tick.C
	}
	<-ctx.Done()
}
