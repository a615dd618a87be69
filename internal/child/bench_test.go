//go:build linux

package child_test

import (
	"context"
	"runtime"
	"runtime/metrics"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/child"
)

// A whole life of the cheapest process there is, from the start to the sweep.
func BenchmarkLife(b *testing.B) {
	for b.Loop() {
		child.Run(b.Context(), child.Spec{Command: "true", Env: spec("").Env}, untilEnd)
	}
}

// From a SIGKILL to the moment use hears of it, and to Run's return: what a crash costs before the next
// life can start.
func BenchmarkDeath(b *testing.B) {
	child.Subreaper()
	var told, gone time.Duration
	for b.Loop() {
		var killed time.Time
		child.Run(b.Context(), child.Spec{Command: "cat", Env: spec("").Env}, func(ctx context.Context, p *child.Process) error {
			p.Stdin.Write([]byte("x\n"))
			p.Stdout.Read(make([]byte, 2))
			killed = time.Now()
			syscall.Kill(p.PID, syscall.SIGKILL)
			<-ctx.Done()
			told += time.Since(killed)
			return nil
		})
		gone += time.Since(killed)
	}
	b.ReportMetric(float64(told.Microseconds())/float64(b.N), "µs-told/op")
	b.ReportMetric(float64(gone.Microseconds())/float64(b.N), "µs-gone/op")
}

// What processes that say nothing cost their host each, without what use needs.
func BenchmarkIdle(b *testing.B) {
	child.Subreaper() // or the end of so many takes long
	defer child.EndSubreaper()
	const n = 200
	before := memory()
	for b.Loop() {
		ctx, stop := context.WithCancel(b.Context())
		var up, all sync.WaitGroup
		up.Add(n)
		for range n {
			all.Go(func() { // ends with the process
				child.Run(ctx, child.Spec{Command: "cat", Env: spec("").Env, Stderr: func(string) {}}, func(ctx context.Context, _ *child.Process) error {
					up.Done()
					<-ctx.Done()
					return nil
				})
			})
		}
		up.Wait()
		for i, after := range memory() {
			b.ReportMetric(float64(int64(after.Value.Uint64()-before[i].Value.Uint64()))/n, [...]string{"heap-B/child", "stack-B/child", "goroutines/child"}[i])
		}
		stop()
		all.Wait()
	}
}

func memory() []metrics.Sample {
	runtime.GC()
	runtime.GC() // what pools held
	s := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
		{Name: "/sched/goroutines:goroutines"},
	}
	metrics.Read(s)
	return s
}
