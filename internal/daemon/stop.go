package daemon

import (
	"context"
	"log/slog"
	"time"
)

// announceStop logs that the program is stopping when ctx ends, with the signal that ended it. The caller calls done
// when everything has stopped, which is logged too. Without the two lines a program that drains looks like one that
// hangs.
func announceStop(ctx context.Context, name string, logger *slog.Logger) (done func()) {
	var began time.Time
	logged := make(chan struct{})
	// Owned by done, which waits for it unless it never started.
	cancel := context.AfterFunc(ctx, func() {
		defer close(logged)
		began = time.Now()
		logger.Info(name+" is stopping; a second signal ends it immediately", "reason", context.Cause(ctx).Error())
	})
	return func() {
		if cancel() {
			return
		}
		<-logged
		logger.Info(name+" has stopped", "took", time.Since(began).Round(time.Millisecond).String())
	}
}
