//go:build linux

package child_test

import (
	"context"
	"testing"

	"github.com/extmesh/extmesh/internal/child"
)

func TestReadAndTryWriteAllocateNothing(t *testing.T) {
	noSurvivors(t)
	run(t, t.Context(), spec("echo"), func(ctx context.Context, p *child.Process) error {
		line, buf := []byte("x\n"), make([]byte, 100)
		n := testing.AllocsPerRun(100, func() {
			p.Stdin.TryWrite(line)
			p.Stdout.Read(buf)
		})
		if n > 0 {
			t.Errorf("%v allocations", n)
		}
		return nil
	})
}
