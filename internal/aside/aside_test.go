package aside_test

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"

	"github.com/extmesh/extmesh/internal/aside"
)

func TestRunWaits(t *testing.T) {
	n := 0
	aside.Run(func() { n++ })
	if n != 1 {
		t.Errorf("f was run %d times, want 1", n)
	}
}

// TestStacksStaySmall compares the stacks of many goroutines that wait after deep work, with and without Run.
func TestStacksStaySmall(t *testing.T) {
	const n = 200
	waiting := func(first func()) int64 {
		runtime.GC() // release the stacks of the previous round
		before := stacks()
		var ready, all sync.WaitGroup
		end := make(chan struct{})
		for range n {
			ready.Add(1)
			all.Go(func() { // ends when end is closed
				first()
				ready.Done()
				<-end
			})
		}
		ready.Wait()
		runtime.GC()
		took := stacks() - before
		close(end)
		all.Wait()
		return took / n
	}
	here, there := waiting(func() { deep(1) }), waiting(func() { aside.Run(func() { deep(1) }) })
	t.Logf("%d bytes of stack per goroutine, %d with Run", here, there)
	if there*2 > here {
		t.Errorf("a goroutine keeps %d bytes of stack with Run, %d without", there, here)
	}
}

//go:noinline
func deep(n byte) byte {
	var frame [32 << 10]byte
	for i := range frame {
		frame[i] = n + byte(i)
	}
	return frame[n]
}

func stacks() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}
