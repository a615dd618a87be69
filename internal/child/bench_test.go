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

// BenchmarkRun runs a minimal process, from the start to the search for descendants.
func BenchmarkRun(b *testing.B) {
	for b.Loop() {
		child.Run(b.Context(), child.Spec{Command: "true", Env: spec("").Env}, untilEnd)
	}
}

// BenchmarkCrash measures the time from a SIGKILL until ctx ends, and until Run returns, so that the process can be
// started again.
func BenchmarkCrash(b *testing.B) {
	child.Subreaper()
	var noticed, gone time.Duration
	for b.Loop() {
		var killed time.Time
		child.Run(b.Context(), child.Spec{Command: "cat", Env: spec("").Env}, func(ctx context.Context, p *child.Process) error {
			p.Stdin.Write([]byte("x\n"))
			p.Stdout.Read(make([]byte, 2))
			killed = time.Now()
			syscall.Kill(p.PID, syscall.SIGKILL)
			<-ctx.Done()
			noticed += time.Since(killed)
			return nil
		})
		gone += time.Since(killed)
	}
	b.ReportMetric(float64(noticed.Microseconds())/float64(b.N), "µs-noticed/op")
	b.ReportMetric(float64(gone.Microseconds())/float64(b.N), "µs-gone/op")
}

// BenchmarkIdle measures what each idle process costs its host, without what use needs.
func BenchmarkIdle(b *testing.B) {
	child.Subreaper() // otherwise ending so many takes long
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
	runtime.GC() // empties the pools
	s := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
		{Name: "/sched/goroutines:goroutines"},
	}
	metrics.Read(s)
	return s
}
