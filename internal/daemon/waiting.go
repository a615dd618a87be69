package daemon

import (
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
)

// waitingEvery is how often a program that waits for NATS says so. Whoever looks at a log that is quiet for longer
// takes the program for dead.
const waitingEvery = 30 * time.Second

// waiting is what has been said about a NATS that is not there. It is told of failures by one goroutine, that of
// the reconnecting connection.
type waiting struct {
	logger *slog.Logger
	server string

	said string    // the last reason
	at   time.Time // when it was said
}

// failed says why connecting failed, when it is news or has not been said for a while.
func (w *waiting) failed(err error, now time.Time) {
	// After the first round nats.go only says that no server was available; the next round says why.
	if err == nil || errors.Is(err, nats.ErrNoServers) {
		return
	}
	if err.Error() == w.said && now.Sub(w.at) < waitingEvery {
		return
	}
	w.said, w.at = err.Error(), now
	w.logger.Warn("still waiting for NATS", "server", w.server, "error", err)
}
