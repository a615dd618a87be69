package registry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// How instances are probed.
const (
	probeTimeout = time.Second
	probeRetry   = 50 * time.Millisecond  // after no responders: three attempts within 100 ms
	probeNote    = 100 * time.Millisecond // unanswered for that long, the catalog shows it
	maxProbes    = 64
)

// errNotSent means that a request did not reach the server, so the instance's state is still unknown.
var errNotSent = errors.New("the ping was not sent")

// probe pings an instance.
func (l *loop) probe(p fleet.Ping) {
	l.probing.start(func() {
		asking, answered := context.WithCancel(l.ctx)
		l.wg.Go(func() { // owned by the loop; ends with the answer
			if sleep(asking, probeNote) {
				l.report(func(l *loop) { l.fleet.Unanswered(p, time.Now()) })
			}
		})
		l.wg.Go(func() { // owned by the loop; ends after p.Tries × probeTimeout
			reason, err := ping(l.ctx, l.nc, p.Subject, p.Tries)
			answered()
			l.report(func(l *loop) {
				l.probing.finish()
				l.fleet.Probed(p, reason, err, time.Now())
			})
		})
	})
}

// ping pings a subject. reason is "" if there was an answer; with err the result is unknown.
func ping(ctx context.Context, nc *nats.Conn, subject string, tries int) (reason string, err error) {
	for try := range tries {
		if try > 0 && !sleep(ctx, probeRetry) {
			return "", context.Cause(ctx)
		}
		reason, err = pingOnce(ctx, nc, subject)
		if reason == "" || err != nil {
			return reason, err
		}
	}
	return reason, nil
}

func pingOnce(ctx context.Context, nc *nats.Conn, subject string) (reason string, err error) {
	pinging, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	m, err := natsconn.Request(pinging, nc, subject, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return "no responders", nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return fleet.NotAnswering, nil
	case err != nil:
		return "", fmt.Errorf("%w: %w", errNotSent, err)
	}
	return reasonOf(m), nil
}

// reasonOf reads the answer to a ping. Any answer counts, even an error, except an error with which a bridge reports
// that the instance is not there.
func reasonOf(m *nats.Msg) string {
	code, err := strconv.Atoi(m.Header.Get("Nats-Service-Error-Code"))
	if err != nil {
		return ""
	}
	switch rpc.Code(code) {
	case rpc.CodeTimeout:
		return fleet.NotAnswering
	case rpc.CodeExited, rpc.CodeUnavailable, rpc.CodeBreakerOpen:
		return rpc.Code(code).Kind()
	}
	return ""
}
