package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// BenchmarkShippedRoles makes calls with 64 callers and the shipped configuration, and prints calls per second and the
// server's memory for each tenth of the calls. A server that keeps state for each call becomes slower and larger.
//
//	go test ./e2e -run '^$' -bench ShippedRoles -benchtime 2000000x
func BenchmarkShippedRoles(b *testing.B) {
	if runtime.GOOS != "linux" { // the server's memory is read from /proc
		b.Skip("needs Linux")
	}
	if b.N < 1000 { // package testing starts with b.N = 1
		return
	}
	url, server := startShipped(b, "one.conf", nil)
	connectAs := func(user string) *nats.Conn {
		nc, err := mesh.Connect(as(url, user), nats.CustomInboxPrefix("_INBOX."+user))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(nc.Close)
		return nc
	}
	node := serve.NewPublisher(connectAs("primes"), serve.PublisherOptions{})
	slot := node.Join(wire.Announce{ID: "primes", Version: "1.0.0"})
	var wg sync.WaitGroup
	b.Cleanup(wg.Wait)
	echo := rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) { return r.Params, nil })
	wg.Go(func() { node.Run(b.Context()) }) // these two end with the benchmark's context
	wg.Go(func() { slot.Serve(b.Context(), echo, serve.Options{DrainTimeout: time.Second}) })
	client := mesh.NewClient(connectAs("agent"), mesh.ClientOptions{})
	eventually(b, time.Minute, "it answers", func() bool {
		_, err := client.CallExt(b.Context(), "primes", "tools/x", nil)
		return err == nil
	})

	const callers = 64
	var failed atomic.Int64
	tenth := func() float64 {
		var left atomic.Int64
		left.Store(int64(b.N / 10))
		var all sync.WaitGroup
		began := time.Now()
		for range callers {
			all.Go(func() { // ends with the last call
				for left.Add(-1) >= 0 {
					if _, err := client.CallExt(b.Context(), "primes", "tools/x", json.RawMessage(`{"n":1}`)); err != nil {
						failed.Add(1)
					}
				}
			})
		}
		all.Wait()
		return float64(b.N/10) / time.Since(began).Seconds()
	}
	b.ResetTimer()
	var first, last float64
	firstMiB := residentMiB(b, server.cmd.Process.Pid)
	report := fmt.Sprintf("before the first call: the server has %.0f MiB\n", firstMiB)
	for i := range 10 {
		last = tenth()
		if i == 0 {
			first = last
		}
		report += fmt.Sprintf("%d of 10: %.0f calls/s, the server has %.0f MiB\n", i+1, last, residentMiB(b, server.cmd.Process.Pid))
	}
	b.StopTimer()
	fmt.Fprint(os.Stderr, report) // b.Log truncates it
	b.ReportMetric(last/first, "last/first")
	b.ReportMetric(residentMiB(b, server.cmd.Process.Pid), "MiB-server")
	if n := failed.Load(); n > 0 {
		b.Errorf("%d of %d calls failed", n, b.N)
	}
}

// residentMiB returns the resident memory of a process.
func residentMiB(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		b.Fatal(err)
	}
	return float64(kb) / 1024
}
