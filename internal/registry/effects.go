package registry

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// The limits of requests to bridges.
const (
	pingTimeout   = time.Second
	maxBridgePing = 256
)

// perform carries out what the fleet has decided since the last call, and passes the changed keys to the publisher.
func (l *loop) perform() {
	marks, effects := l.fleet.Take()
	for key, urgent := range marks {
		l.pub.mark(key, urgent)
	}
	for _, e := range effects {
		switch e := e.(type) {
		case fleet.RequestAnnouncements:
			if err := l.nc.Publish(l.cfg.Prefix.AnnounceRequest(), nil); err != nil {
				l.log.Warn("cannot publish the announce request", "error", err)
			}
		case fleet.RequestInventory:
			l.askBridge(e.Bridge, "inventory", func(*loop, json.RawMessage, error) {})
		case fleet.PingBridge:
			l.askBridge(e.Bridge, "ping", func(l *loop, answer json.RawMessage, err error) {
				l.fleet.Pinged(e, pingResult(answer, err), time.Now())
			})
		case fleet.ConfirmGone:
			l.afterPending(func(now time.Time) { l.fleet.BridgeGone(e, now) })
		case fleet.Ping:
			l.probe(e)
		case fleet.Handshake:
			l.handshake(e)
		case fleet.Refused:
			l.refuse(e.What, e.ID, e.Err)
		case fleet.Log:
			l.log.Log(l.ctx, l.level(e.Level), e.Message, e.Args...)
		}
	}
}

// askBridge sends a request without params to a bridge, and passes the result to the loop.
func (l *loop) askBridge(name, method string, done func(l *loop, answer json.RawMessage, err error)) {
	q := request{nc: l.nc, subject: l.cfg.Prefix.Control(name), method: method}
	l.pings.start(func() {
		l.wg.Go(func() { // owned by the loop; ends with pingTimeout at the latest
			answer, err := q.send(l.ctx, pingTimeout)
			l.report(func(l *loop) {
				l.pings.finish()
				done(l, answer, err)
			})
		})
	})
}

func pingResult(answer json.RawMessage, err error) fleet.PingResult {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fleet.PingResult{Outcome: fleet.NoResponders}
	case errors.Is(err, context.DeadlineExceeded):
		return fleet.PingResult{Outcome: fleet.TimedOut}
	case err == nil, errors.As(err, new(*rpc.Error)):
		return fleet.PingResult{Outcome: fleet.Answered, Answer: answer}
	}
	return fleet.PingResult{}
}

// level is the level of a log line about the mesh. All replicas see the same events, so only the leader logs them, or
// every replica while there is no leader.
func (l *loop) level(of slog.Level) slog.Level {
	if l.leading() || l.snapshotVersion().Stale || l.view.get(wire.KeyLease) == nil {
		return of
	}
	return slog.LevelDebug
}

// limits are what documents may take: the server's largest message, less space for the subject and the headers.
func (l *loop) limits() fleet.Limits {
	value := int(l.nc.MaxPayload()) - 2048
	return fleet.Limits{Value: value, Spec: value - int(l.nc.MaxPayload())/32}
}
