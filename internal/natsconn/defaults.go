package natsconn

import (
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 10 * time.Second
)

// Defaults returns the options that every connection of this project has, except Option, which must be the last.
func Defaults() []nats.Option {
	return []nats.Option{
		nats.Timeout(5 * time.Second), // of a connection attempt, including an auth callout
		// Of one write: while it waits, nats.go holds the lock that its pings need, and so does not detect a hung server.
		nats.FlusherTimeout(10 * time.Second),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(reconnectDelay),
		// A server that hangs is detected 4.7 to 5.5 s after it last sent something (see conn.Read). deploy/nats/settings.conf has the same values, and the reason.
		nats.PingInterval(2 * time.Second),
		nats.MaxPingsOutstanding(2),
	}
}

// reconnectDelay doubles its upper bound with every round and adds full jitter, so that the clients of a restarted
// server do not all reconnect at once.
func reconnectDelay(attempts int) time.Duration {
	bound := min(reconnectMax, reconnectMin<<min(max(attempts, 1), 10))
	return reconnectMin + rand.N(bound-reconnectMin+1)
}
