package mesh

import (
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
)

// Connect connects to NATS as callers and services of a mesh should. It is nats.Connect with these options, which can be
// overridden:
//
//   - It reconnects without a limit (nats.MaxReconnects), also while the server refuses the credentials
//     (nats.IgnoreAuthErrorAbort), after pauses of 100 ms to 10 s (nats.CustomReconnectDelay).
//   - A server that hangs is detected within 6 s (nats.PingInterval, nats.MaxPingsOutstanding).
//   - Requests fail immediately while NATS is unreachable (nats.ReconnectBufSize). By default nats.go would send them
//     after the reconnect, when their callers have given up. A service that shall send the results of such a time
//     afterwards passes nats.ReconnectBufSize(nats.DefaultReconnectBufSize).
//   - A connection attempt may take 5 s (nats.Timeout).
//
// In addition, a single message is written without a change of goroutine (docs/performance.md), and if the server announces
// that it will shut down (lame duck mode), calls in flight are completed before the connection moves to another server.
// Serve detects a subscription that NATS denies. These three are left out if there is a custom dialer or an
// in-process server, and then only answers to pings, not other bytes, show that the server works. A handler for errors
// (nats.ErrorHandler) has to be passed here: nats.Conn.SetErrorHandler would replace the one that detects denials.
//
// The first attempt's error is returned. To wait for a server that has not started, pass nats.RetryOnFailedConnect(true).
func Connect(url string, options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, ConnectOptions(options...)...)
}

// ConnectOptions returns all options that Connect uses with these, for functions that connect by themselves, such as
// natscontext.Connect.
func ConnectOptions(options ...nats.Option) []nats.Option {
	all := append(natsconn.Defaults(), nats.IgnoreAuthErrorAbort(), nats.ReconnectBufSize(-1))
	return append(append(all, options...), natsconn.Option())
}
