package bridge

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// The limits of a tap.
const (
	defaultTap = 30 * time.Second
	maxTap     = 10 * time.Minute
	maxTapRate = 500 // records a second; further ones are counted as dropped
)

// tap answers at once. The selected calls follow on the same reply subject while they end, until the time is over.
func (c *control) tap(params json.RawMessage) (json.RawMessage, error) {
	var p struct {
		calls.Query
		ForMS int64 `json:"for_ms"`
	}
	if err := json.Unmarshal(params, &p); err != nil || p.ID == "" || p.ForMS < 0 {
		return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, `tap requires params {"id"}; for_ms is a positive number`)
	}
	d := defaultTap
	if p.ForMS > 0 {
		d = time.Duration(min(p.ForMS, maxTap.Milliseconds())) * time.Millisecond
	}
	t, stop, ok := c.b.calls.Tap(p.Query)
	if !ok {
		return nil, rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo}, "bridge %s has as many taps as it may have; they end within %v", c.b.cfg.Name, maxTap)
	}
	c.tapped = func(ctx context.Context, m *nats.Msg) {
		if !c.b.cfg.Prefix.MayAnswer(m.Reply) {
			stop()
			return
		}
		sendTapped(ctx, m, t, d)
		stop() // before the end is sent: its receiver may begin another tap
		respond(m, "end", map[string]any{"dropped": t.Dropped.Load(), "stopping": ctx.Err() != nil})
	}
	return json.Marshal(map[string]any{"for_ms": d.Milliseconds()})
}

// respond sends a notification on the reply subject of a request.
func respond(m *nats.Msg, method string, params any) {
	if text, err := json.Marshal(params); err == nil {
		_ = m.Respond(jsonrpc.AppendRequest(nil, nil, method, text)) // without a connection nobody receives it
	}
}

// sendTapped sends the calls of a tap as notifications, until its time is over or the bridge stops.
func sendTapped(ctx context.Context, m *nats.Msg, t *calls.Tap, d time.Duration) {
	end, second := time.NewTimer(d), time.NewTicker(time.Second)
	defer end.Stop()
	defer second.Stop()
	for left := maxTapRate; ; {
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case <-second.C:
			left = maxTapRate
		case r := <-t.Records:
			if left--; left < 0 {
				t.Dropped.Add(1)
				continue
			}
			respond(m, "call", r)
		}
	}
}
