//go:build unix

package daemon

import (
	"syscall"
	"testing"
	"time"
)

// Two signals at once are one wish, as timeout(1) sends them to the process and then to its group. What would be the
// default action ends this test.
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
