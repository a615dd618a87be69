package daemon

import (
	"context"
	"log/slog"
	"time"
)

// announceStop logs when ctx ends, with the signal that ended it, that the program stops; done, called when all of
// it has, logs that. Without the two lines a program that drains looks like one that hangs.
func announceStop(ctx context.Context, name string, logger *slog.Logger) (done func()) {
	var began time.Time
	said := make(chan struct{})
	// Owned by done, which waits for it unless it never ran.
	cancel := context.AfterFunc(ctx, func() {
		defer close(said)
		began = time.Now()
		logger.Info(name+" stops; a second signal ends it at once", "reason", context.Cause(ctx).Error())
	})
	return func() {
		if cancel() {
			return
		}
		<-said
		logger.Info(name+" has stopped", "took", time.Since(began).Round(time.Millisecond).String())
	}
}
