package daemon

import (
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
)

// waitingEvery is how often a program that waits for NATS repeats that in its log, so that it does not look stuck.
const waitingEvery = 30 * time.Second

// waiting logs why NATS cannot be reached. Only the goroutine of the reconnecting connection uses it.
type waiting struct {
	logger *slog.Logger
	server string

	logged string    // the last reason logged
	at     time.Time // when it was logged
}

// failed logs why connecting failed if the reason is new or was last logged a while ago.
func (w *waiting) failed(err error, now time.Time) {
	// After the first round nats.go reports only that no server is available; the next round has the reason.
	if err == nil || errors.Is(err, nats.ErrNoServers) {
		return
	}
	if err.Error() == w.logged && now.Sub(w.at) < waitingEvery {
		return
	}
	w.logged, w.at = err.Error(), now
	w.logger.Warn("still waiting for NATS", "server", w.server, "error", err)
}
