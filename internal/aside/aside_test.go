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
		t.Errorf("it was run %d times", n)
	}
}

// TestStacksStaySmall has many goroutines wait behind something deep, and looks at what their stacks take.
func TestStacksStaySmall(t *testing.T) {
	const n = 200
	waiting := func(first func()) int64 {
		runtime.GC() // what the last ones had is given back
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
	t.Logf("%d bytes each, %d aside", here, there)
	if there*2 > here {
		t.Errorf("aside a goroutine keeps %d bytes of stack, and %d without", there, here)
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
