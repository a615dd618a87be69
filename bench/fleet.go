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

// fleet is a number of extensions with one instance each, without processes: it sends the inventories of their bridges
// and answers their requests, as their bridges would.
type fleet struct {
	nc     *nats.Conn
	size   int
	since  time.Time // when its bridges started
	answer []byte    // to every request

	mu    sync.Mutex
	seq   []uint64 // of the last inventory message, by bridge
	state []heartbeat.State
}

const (
	beatEvery = 15 * time.Second
	hostSize  = 100 // extensions of one bridge
)

// newFleet makes extensions with tools of the usual size: 1.3 kB each with their schemas.
func newFleet(nc *nats.Conn, extensions, tools int) *fleet {
	f := &fleet{nc: nc, size: extensions, since: time.Now().UTC(), seq: make([]uint64, (extensions+hostSize-1)/hostSize),
		state: make([]heartbeat.State, extensions)}
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

// publish numbers and sends an inventory message of a bridge. The caller holds mu. It ignores errors: the connection is
// closed with the stage, and the registry repeats its requests.
func (f *fleet) publish(bridge int, v wire.Inventory) {
	v.SchemaVersion, v.Bridge, v.Run, v.IntervalMS = wire.SchemaVersion, hostName(bridge), "run", beatEvery.Milliseconds()
	if v.Kind != wire.InventoryHeartbeat {
		f.seq[bridge]++
	}
	v.Seq = f.seq[bridge]
	_ = f.nc.Publish(prefix.HostReport(v.Bridge), must(json.Marshal(v)))
}

func hostName(bridge int) string { return fmt.Sprint("host-", bridge) }

// entry is the entry of an extension in the inventory of its bridge.
func (f *fleet) entry(n int) wire.InventoryInstance {
	bridge := hostName(n / hostSize)
	return wire.InventoryInstance{State: f.state[n], Announce: wire.Announce{ID: simID(n), Version: "1.0.0", Instance: fmt.Sprintf("n%06d", n),
		Host: bridge, Bridge: bridge, Transport: "stdio", Dialect: "ext", Features: []string{wire.FeatureInstance},
		ManifestHash: strings.Repeat("a", 64), HandshakeHash: strings.Repeat("b", 64)}}
}

// announce sends what bridges send on request: each its full inventory.
func (f *fleet) announce() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for bridge := range f.seq {
		v := wire.Inventory{Kind: wire.InventoryFull, Host: &wire.InventoryHost{Host: hostName(bridge), Version: "1.0.0", Since: f.since}}
		for n := bridge * hostSize; n < min((bridge+1)*hostSize, f.size); n++ {
			v.Instances = append(v.Instances, f.entry(n))
		}
		f.publish(bridge, v)
	}
}

// beat reports the new state of an extension, or sends a heartbeat of its bridge if there is no new one.
func (f *fleet) beat(n int, s heartbeat.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s == "" {
		f.publish(n/hostSize, wire.Inventory{Kind: wire.InventoryHeartbeat})
		return
	}
	f.state[n] = s
	f.publish(n/hostSize, wire.Inventory{Kind: wire.InventoryDelta, Instances: []wire.InventoryInstance{f.entry(n)}})
}

// keepBeating sends heartbeats of all bridges, spread evenly over the interval, until stop is called.
func (f *fleet) keepBeating(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { // owned by the caller of stop, which waits
		n := 0
		load.Run(ctx, load.Options{Rate: float64(len(f.seq)) / beatEvery.Seconds()}, func(context.Context) error {
			f.beat(n*hostSize, "")
			n = (n + 1) % len(f.seq)
			return nil
		})
	})
	return func() { cancel(); wg.Wait() }
}
