package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// fleet is a number of extensions with one instance each, without processes: it sends their announcements and
// heartbeats and answers their requests, as their bridges would.
type fleet struct {
	nc     *nats.Conn
	size   int
	since  time.Time // when its bridges started
	answer []byte    // to every request

	mu        sync.Mutex
	seq       []uint64 // of the last heartbeat
	state     []heartbeat.State
	announced []string // digest of the last announcement
}

const (
	beatEvery = 15 * time.Second
	hostSize  = 100 // extensions of one bridge
)

// newFleet makes extensions with tools of the usual size: 1.3 kB each with their schemas.
func newFleet(nc *nats.Conn, extensions, tools int) *fleet {
	f := &fleet{nc: nc, size: extensions, since: time.Now().UTC(), seq: make([]uint64, extensions),
		state: make([]heartbeat.State, extensions), announced: make([]string, extensions)}
	for n := range f.state {
		f.state[n] = heartbeat.Ready
	}
	properties := map[string]any{}
	for i := range 8 {
		properties[fmt.Sprint("field_", i)] = map[string]string{"type": "string", "description": strings.Repeat("What it is good for. ", 4)}
	}
	var list []any
	for n := range tools {
		list = append(list, map[string]any{"name": fmt.Sprint("tool_", n), "description": strings.Repeat("Does something useful. ", 8),
			"input_schema": map[string]any{"type": "object", "properties": properties, "required": []string{"field_0"}}})
	}
	f.answer = must(json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1,
		"result": map[string]any{"server_version": "1.0.0", "tools": list, "hooks": []string{}}}))
	respond := func(m *nats.Msg) { _ = m.Respond(f.answer) } // fails when the stage is closed
	for _, subject := range []string{"ext.*.rpc.*", "ext.control.*", prefix.RPC(simID(0))} {
		must(nc.Subscribe(subject, respond))
	}
	must(nc.Subscribe(prefix.AnnounceRequest(), func(*nats.Msg) { f.announce() }))
	check(nc.Flush())
	return f
}

func simID(n int) string { return fmt.Sprintf("sim%06d", n) }

// publish ignores errors: the connection is closed with the stage, and the registry repeats its requests.
func (f *fleet) publish(subject string, doc any) []byte {
	data := must(json.Marshal(doc))
	_ = f.nc.Publish(subject, data)
	return data
}

// announce sends what bridges send on request: each a report of its extensions, then an announcement and a heartbeat
// of each of them.
func (f *fleet) announce() {
	for n := range f.size {
		bridge := fmt.Sprint("host-", n/hostSize)
		if n%hostSize == 0 {
			h := wire.Host{Bridge: bridge, Host: bridge, Version: "1.0.0", Since: f.since}
			for i := n; i < min(n+hostSize, f.size); i++ {
				h.Extensions = append(h.Extensions, simID(i))
			}
			f.publish(prefix.HostReport(bridge), h)
		}
		data := f.publish(prefix.Announce(simID(n)), wire.Announce{SchemaVersion: 1, ID: simID(n), Version: "1.0.0", Instance: fmt.Sprintf("n%06d", n),
			Host: bridge, Bridge: bridge, Transport: "stdio", Dialect: "ext", Features: []string{wire.FeatureInstance},
			ManifestHash: strings.Repeat("a", 64), HandshakeHash: strings.Repeat("b", 64)})
		f.mu.Lock()
		f.announced[n] = wire.AnnounceDigest(data)
		f.mu.Unlock()
		f.beat(n, "")
	}
}

// beat sends a heartbeat of one extension: with a new state, or without news if it is empty.
func (f *fleet) beat(n int, s heartbeat.State) {
	f.mu.Lock()
	f.seq[n]++
	if s != "" {
		f.state[n] = s
	}
	b := heartbeat.Message{ID: simID(n), Instance: fmt.Sprintf("n%06d", n), Version: "1.0.0", Seq: f.seq[n], TS: time.Now(),
		IntervalMS: beatEvery.Milliseconds(), State: f.state[n], Announced: f.announced[n]}
	f.mu.Unlock()
	f.publish(prefix.Heartbeat(b.ID), b)
}

// keepBeating sends heartbeats of all extensions from one on, spread evenly over the interval, until stop is called.
func (f *fleet) keepBeating(ctx context.Context, from int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { // owned by the caller of stop, which waits
		n := from
		load.Run(ctx, load.Options{Rate: float64(f.size-from) / beatEvery.Seconds()}, func(context.Context) error {
			f.beat(n, "")
			if n++; n >= f.size {
				n = from
			}
			return nil
		})
	})
	return func() { cancel(); wg.Wait() }
}
