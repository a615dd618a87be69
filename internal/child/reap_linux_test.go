package child

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestReapAfter: a child that keeps leaving orphans does not postpone that they are reaped.
func TestReapAfter(t *testing.T) {
	for _, tt := range []struct {
		name        string
		every       time.Duration // between two exits, for ten seconds
		kept        bool          // another part of the program may wait for one
		least, most int           // calls of reap
	}{
		{"continuous", 20 * time.Millisecond, false, 50, 110},
		{"continuous, and one kept", 20 * time.Millisecond, true, 20, 22},
		{"every 3 s", 3 * time.Second, false, 5, 5},
		{"every hour", time.Hour, false, 2, 2}, // at the beginning and at the end
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				exits, stop, done := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
				calls := 0
				go func() { // ends with stop
					defer close(done)
					reapAfter(exits, stop, func(_ map[int]time.Time, now time.Time) map[int]time.Time {
						calls++
						if tt.kept {
							return map[int]time.Time{1: now}
						}
						return nil
					})
				}()
				ticks, end := time.NewTicker(tt.every), time.After(10*time.Second)
				defer ticks.Stop()
				for running := true; running; {
					select {
					case <-ticks.C:
						exits <- unix.SIGCHLD
					case <-end:
						running = false
					}
				}
				close(stop)
				<-done
				if calls < tt.least || calls > tt.most {
					t.Errorf("reap was called %d times", calls)
				}
			})
		})
	}
}
