//go:build unix

package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// BenchmarkFleet builds the catalog of 10,000 extensions with 10 tools each from an empty bucket, hands it over to
// a second registry, and then lets 1,000 of them flap. It is one run, for the numbers that it reports:
//
//	go test ./internal/registry -run '^$' -bench Fleet -benchtime 1x
func BenchmarkFleet(b *testing.B) {
	const extensions, tools = 10_000, 10
	for b.Loop() {
		s, err := server.NewServer(&server.Options{ServerName: "test", DontListen: true, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: b.TempDir(), MaxPayload: 4 << 20})
		if err != nil {
			b.Fatal(err)
		}
		s.Start()
		connect := func() *nats.Conn {
			nc, err := nats.Connect("", nats.Timeout(time.Minute), nats.InProcessServer(s))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(nc.Close)
			return nc
		}
		sims := &simulated{nc: connect(), size: extensions, tools: tools}
		sims.serve(b)

		one, stopOne := fleetRegistry(b, connect(), "one")
		awaitStatus(b, one, func(s Status) bool { return s.Leading })
		start, cpu := time.Now(), cpuTime()
		for n := range extensions {
			sims.announce(b, n)
			sims.beat(b, n, heartbeat.Ready)
		}
		awaitStatus(b, one, func(s Status) bool { return s.Tools == extensions*tools && s.Pending == 0 && s.Handshakes == 0 })
		b.ReportMetric(time.Since(start).Seconds(), "s/build")
		b.ReportMetric((cpuTime() - cpu).Seconds(), "cpu-s/build")
		b.ReportMetric(heap(), "MB/one")

		two, stopTwo := fleetRegistry(b, connect(), "two")
		awaitStatus(b, two, func(s Status) bool { return s.Revision > 0 && !s.Stale })
		sims.beatAll(b)
		awaitStatus(b, two, func(s Status) bool { return s.Traffic.Beats >= extensions })
		b.ReportMetric(heap(), "MB/both")
		start = time.Now()
		stopOne()
		awaitStatus(b, two, func(s Status) bool { return s.Leading })
		b.ReportMetric(time.Since(start).Seconds(), "s/handover")
		awaitStatus(b, two, func(s Status) bool { return s.Pending == 0 })
		st := awaitStatus(b, two, func(s Status) bool { return true })
		b.ReportMetric(float64(st.Traffic.Writes), "writes/handover")

		start, cpu = time.Now(), cpuTime()
		writes := st.Traffic.Writes
		for round := range 10 {
			for n := range 1000 {
				sims.beat(b, n, [...]heartbeat.State{heartbeat.Restarting, heartbeat.Ready}[round%2])
			}
			<-time.After(time.Until(start.Add(time.Duration(round+1) * 500 * time.Millisecond)))
		}
		st = awaitStatus(b, two, func(s Status) bool { return s.Pending == 0 })
		b.ReportMetric(float64(st.Traffic.Writes-writes)/time.Since(start).Seconds(), "writes/s-flapping")
		b.ReportMetric((cpuTime()-cpu).Seconds()/time.Since(start).Seconds(), "cpus-flapping")
		stopTwo()
		s.Shutdown()
		s.WaitForShutdown()
	}
}

// simulated implements many extensions on plain NATS messages.
type simulated struct {
	nc          *nats.Conn
	size, tools int
	answer      []byte
}

func (f *simulated) id(n int) string { return fmt.Sprintf("sim%05d", n) }

func (f *simulated) serve(b *testing.B) {
	var list []map[string]any
	for n := range f.tools {
		list = append(list, map[string]any{"name": fmt.Sprintf("tool_%d", n), "description": strings.Repeat("Does something useful. ", 5),
			"input_schema": json.RawMessage(`{"type":"object","properties":{"city":{"type":"string","description":"The city."},"days":{"type":"integer","minimum":1}},"required":["city"]}`)})
	}
	var err error
	if f.answer, err = json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "result": map[string]any{"server_version": "1.0.0", "tools": list, "hooks": []string{}}}); err != nil {
		b.Fatal(err)
	}
	if _, err := f.nc.Subscribe("ext.*.rpc.*", func(m *nats.Msg) { _ = m.Respond(f.answer) }); err != nil {
		b.Fatal(err)
	}
	if _, err := f.nc.Subscribe("ext.control.*", func(m *nats.Msg) { _ = m.Respond(f.answer) }); err != nil {
		b.Fatal(err)
	}
}

func (f *simulated) publish(b *testing.B, subject string, doc any) {
	data, err := json.Marshal(doc)
	if err == nil {
		err = f.nc.Publish(subject, data)
	}
	if err != nil {
		b.Fatal(err)
	}
}

func (f *simulated) announce(b *testing.B, n int) {
	f.publish(b, prefix.Announce(f.id(n)), wire.Announce{SchemaVersion: 1, ID: f.id(n), Version: "1.0.0", Instance: "i", Host: "h",
		Bridge: fmt.Sprint("b", n/100), Transport: "stdio", Features: []string{wire.FeatureInstance}, ManifestHash: strings.Repeat("a", 64), HandshakeHash: strings.Repeat("b", 64)})
}

func (f *simulated) beat(b *testing.B, n int, s heartbeat.State) {
	f.publish(b, prefix.Heartbeat(f.id(n)), heartbeat.Message{ID: f.id(n), Instance: "i", Version: "1.0.0", State: s, IntervalMS: 15_000})
}

func (f *simulated) beatAll(b *testing.B) {
	for n := range f.size {
		f.beat(b, n, heartbeat.Ready)
	}
}

func fleetRegistry(b *testing.B, nc *nats.Conn, name string) (r *Registry, stop func()) {
	r = New(nc, Config{Name: name})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }() // ends with stop
	return r, func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
}

func awaitStatus(b *testing.B, r *Registry, cond func(Status) bool) Status {
	for deadline := time.Now().Add(2 * time.Minute); ; {
		s, err := r.Status(b.Context())
		if err == nil && cond(s) {
			return s
		}
		if time.Now().After(deadline) {
			b.Fatalf("timed out: %+v, %v", s, err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}
