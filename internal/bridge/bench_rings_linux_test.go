package bridge

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// BenchmarkRings makes calls of 64 callers through the bridge, without a child, with the log of calls and without it, in turns of
// 200 ms. The metric ratio is the number of calls with the log to that without it, in the same time; ns-on and ns-off are the
// processor time of a call, of server, bridge and callers together.
func BenchmarkRings(b *testing.B) {
	const callers, turn = 64, 200 * time.Millisecond
	connect := inProcess(b)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for id, log := range map[string]*calls.Extension{"on": calls.NewLog().Extension("on"), "off": nil} {
		f := &forwarder{conn: instantLink{}, breaker: breaker.New("b", breaker.Settings{}), relist: newSignal(), check: dueSignal{signal: newSignal()}, limits: limits{maxResult: 64 << 20}}
		f.handshake.Store(&handshake{dialect: manifest.Ext, names: map[string]bool{"echo": true}})
		slot := serve.NewPublisher(connect(), serve.PublisherOptions{}).Join(wire.Announce{ID: id, Version: "1.0.0"})
		if log != nil {
			slot.Log(log)
		}
		wg.Go(func() { slot.Serve(ctx, f, serve.Options{}) }) // ends with ctx
	}
	nc := connect()
	body := jsonrpc.AppendRequest(nil, []byte("1"), "tools/echo", []byte(`{"text":"hello"}`))
	header := nats.Header{wire.HeaderCallID: {"Zn4VWzX9kAEVgcTNtpHBoU"}, wire.HeaderAgent: {"bench"}}
	during := func(id string) (made int64, used time.Duration) {
		var n atomic.Int64
		var all sync.WaitGroup
		before, end := cpuTime(), time.Now().Add(turn)
		for range callers {
			all.Go(func() { // ends with the turn
				for time.Now().Before(end) {
					if _, err := nc.RequestMsg(&nats.Msg{Subject: "ext." + id + ".rpc", Header: header, Data: body}, time.Minute); err == nil {
						n.Add(1)
					}
				}
			})
		}
		all.Wait()
		return n.Load(), cpuTime() - before
	}
	made, used := map[string]int64{}, map[string]time.Duration{}
	during("on")
	during("off") // both are ready and warm
	for n := 0; b.Loop(); n++ {
		for _, id := range [][]string{{"on", "off"}, {"off", "on"}}[n%2] {
			m, u := during(id)
			made[id] += m
			used[id] += u
		}
	}
	b.ReportMetric(float64(made["on"])/float64(made["off"]), "ratio")
	for _, id := range []string{"on", "off"} {
		b.ReportMetric(float64(used[id])/float64(made[id]), "ns-"+id)
	}
}

// cpuTime is the processor time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
