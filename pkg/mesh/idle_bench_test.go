package mesh_test

import (
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// BenchmarkIdleSlot reports what a slot costs that is served and idle: of the whole process, the server in it
// included. Its nanoseconds mean nothing.
func BenchmarkIdleSlot(b *testing.B) {
	const slots = 1000
	connect := startServer(b)
	nc := connect()
	node := serve.NewPublisher(nc, serve.PublisherOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(ctx) }) // these end with cancel
	all := make([]*serve.Instance, slots)
	for i := range all {
		slot := node.Join(wire.Announce{ID: fmt.Sprintf("x%d", i), Version: "1.0.0", Transport: "stdio", Dialect: "mcp", Host: "h", Bridge: "b"})
		wg.Go(func() {
			if err := slot.Serve(ctx, rpc.HandlerFunc(echo), serve.Options{}); err != nil {
				b.Error(err)
			}
		})
		all[i] = slot
	}
	natstest.Eventually(b, "all are ready", func() bool {
		for _, slot := range all {
			if state, _ := slot.State(); state != heartbeat.Ready {
				return false
			}
		}
		return true
	})
	if err := nc.Flush(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		runtime.GC() // twice, for the pools
	}
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}, {Name: "/sched/goroutines:goroutines"},
	}
	metrics.Read(samples)
	for i, unit := range []string{"heap-B/slot", "stack-B/slot", "goroutines/slot"} {
		b.ReportMetric(float64(samples[i].Value.Uint64())/slots, unit)
	}
	b.ReportMetric(0, "ns/op")
	cancel()
	wg.Wait()
}
