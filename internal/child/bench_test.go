//go:build linux

package child_test

import (
	"context"
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
