package registry

import (
	"encoding/json"
	"log/slog"
	"time"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/wire"
)

// perform carries out what the fleet has decided since the last call, and passes the changed keys to the publisher.
func (l *loop) perform() {
	marks, effects := l.fleet.Take()
	if l.leading() { // a new leader marks everything
		for key, urgent := range marks {
			l.pub.mark(key, urgent)
		}
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
			l.selfCheck.afterPending(func(now time.Time) { l.fleet.BridgeGone(e, now) })
		case fleet.Ping:
			l.workers.probe(e)
		case fleet.Handshake:
			l.workers.handshake(e, l.limits().Spec)
		case fleet.Refused:
			l.refuse(e.What, e.ID, e.Err)
		case fleet.Log:
			l.log.Log(l.ctx, l.level(e.Level), e.Message, e.Args...)
		}
	}
}

// level is the level of a log line about the mesh. All replicas see the same events, so only the leader logs them, or
// every replica while there is no leader.
func (l *loop) level(of slog.Level) slog.Level {
	if l.leading() || l.view.version(l.started).Stale || l.view.get(wire.KeyLease) == nil {
		return of
	}
	return slog.LevelDebug
}

// limits are what documents may take: the server's largest message, less space for the subject and the headers.
func (r *Registry) limits() fleet.Limits {
	value := int(r.nc.MaxPayload()) - 2048
	return fleet.Limits{Value: value, Spec: value - int(r.nc.MaxPayload())/32}
}
