package child

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestReapAfter: a child that goes on leaving orphans does not put off that they are reaped.
func TestReapAfter(t *testing.T) {
	for _, tt := range []struct {
		name        string
		every       time.Duration // from one death to the next, for ten seconds
		kept        bool          // one may be somebody's
		least, most int           // looks
	}{
		{"a storm", 20 * time.Millisecond, false, 50, 110},
		{"a storm, and one that may be somebody's", 20 * time.Millisecond, true, 20, 22},
		{"now and then", 3 * time.Second, false, 5, 5},
		{"hardly ever", time.Hour, false, 2, 2}, // at the beginning and at the end
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				deaths, stop, done := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
				looks := 0
				go func() { // ends with stop
					defer close(done)
					reapAfter(deaths, stop, func(_ map[int]time.Time, now time.Time) map[int]time.Time {
						looks++
						if tt.kept {
							return map[int]time.Time{1: now}
						}
						return nil
					})
				}()
				ticks, end := time.NewTicker(tt.every), time.After(10*time.Second)
				defer ticks.Stop()
				for storm := true; storm; {
					select {
					case <-ticks.C:
						deaths <- unix.SIGCHLD
					case <-end:
						storm = false
					}
				}
				close(stop)
				<-done
				if looks < tt.least || looks > tt.most {
					t.Errorf("it looked %d times", looks)
				}
			})
		})
	}
}
