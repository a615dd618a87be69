package serve

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

const (
	minAnnouncePause = 250 * time.Millisecond // between two announcements on request, because any user may send requests
	republish        = time.Second            // until a heartbeat that could not be published is tried again
)

// presence makes one instance known to the registries.
type presence struct {
	inst     *Instance
	interval time.Duration // between two heartbeats

	announced wire.Announce // as last published
	at        time.Time     // of that
	due       bool          // the instance has to be announced again
	seq       uint64        // of the last heartbeat
}

// Run announces the instance and sends its heartbeats until ctx ends; then it publishes the shutdown notice. It announces
// again on request, after a reconnect, and when the announcement changes; it sends a heartbeat at once when the state
// changes. Bridges report their instances in inventories instead, and do not call Run.
func (s *Instance) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	s.OnChange(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer s.OnChange(nil)
	requests := make(chan struct{}, 1) // all pending requests are answered by one announcement
	nc := s.pub.nc
	sub, err := nc.Subscribe(s.pub.opt.Prefix.AnnounceRequest(), func(*nats.Msg) {
		select {
		case requests <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails only on a closed connection
	connected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(connected)
	p := &presence{inst: s, interval: min(max(s.pub.opt.HeartbeatInterval, heartbeat.MinInterval), heartbeat.MaxInterval)}
	p.announce()
	p.heartbeat()
	next := time.NewTimer(rand.N(p.interval)) // services that start together send their heartbeats at different times
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			p.shutdown()
			return nil
		case <-requests:
			if !p.due {
				p.due = true
				next.Reset(max(0, minAnnouncePause-time.Since(p.at)))
			}
			continue
		case _, open := <-connected:
			if !open {
				connected = nil
				continue
			}
			p.due = true // registries may have missed the announcement
		case <-changed:
			p.due = p.due || !reflect.DeepEqual(p.announced, s.Announced())
		case <-next.C:
		}
		if p.due {
			p.announce()
		}
		next.Reset(p.heartbeat())
	}
}

// announce publishes the announcement. A heartbeat follows it, so that a registry also receives the state.
func (p *presence) announce() {
	p.announced, p.at, p.due = p.inst.Announced(), time.Now(), false
	p.publish(p.inst.pub.opt.Prefix.Announce(p.inst.id), p.announced)
}

// heartbeat sends a heartbeat and returns the time until the next one.
func (p *presence) heartbeat() time.Duration {
	s := p.inst
	m := heartbeat.Message{ID: s.id, Version: p.announced.Version, Instance: s.instance, Seq: p.seq + 1, TS: time.Now(),
		IntervalMS: p.interval.Milliseconds(), UptimeSecs: int64(time.Since(s.born) / time.Second),
		Inflight: s.inflight.Load(), Calls: s.calls.Load(), Errors: s.errors.Load()}
	status := s.Status()
	m.State, m.Reason = status.State()
	m.Restarts = status.Restarts()
	if !p.publish(s.pub.opt.Prefix.Heartbeat(s.id), &m) {
		return republish
	}
	p.seq++
	return p.interval*9/10 + rand.N(p.interval/5+1)
}

// shutdown publishes the shutdown notice. If it is lost, also because there is no connection, the registries miss the
// heartbeats.
func (p *presence) shutdown() {
	s := p.inst
	p.publish(s.pub.opt.Prefix.Shutdown(s.id), wire.ShutdownNotice{ID: s.id, Instance: s.instance, Reason: "shutdown"})
}

func (p *presence) publish(subject string, v any) bool {
	data, err := json.Marshal(v)
	if err == nil {
		err = p.inst.pub.nc.Publish(subject, data)
	}
	if err != nil {
		p.inst.pub.opt.Logger.Warn("cannot publish", "subject", subject, "error", err)
	}
	return err == nil
}
