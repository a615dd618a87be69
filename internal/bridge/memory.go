package bridge

import (
	"runtime"
	"sync/atomic"

	"github.com/extmesh/extmesh/internal/memlimit"
)

// memory limits the bytes of payload that a bridge holds for all of its extensions: requests in flight, and incomplete
// lines from children. The limit is shared, so that a bridge with a thousand extensions stays within its host's memory.
type memory struct {
	limit   atomic.Int64
	used    atomic.Int64
	garbage atomic.Int64 // bytes of large buffers that were returned since collect last ran the garbage collector
}

// defaultMemory is the limit if neither extensions.yaml nor the system sets one. The garbage collector may need the same
// amount in addition.
const defaultMemory = 160 << 20

// largeBuffer is the size from which a returned buffer counts as garbage.
const largeBuffer = 256 << 10

func newMemory(limit int64) *memory {
	m := new(memory)
	m.setLimit(limit)
	return m
}

// setLimit sets a limit of limit bytes; 0: a quarter of this process's memory limit, at most defaultMemory.
func (m *memory) setLimit(limit int64) {
	if limit <= 0 {
		limit = defaultMemory
		if most := memlimit.Bytes(); most > 0 {
			limit = min(limit, most/4)
		}
	}
	m.limit.Store(limit)
}

// reserve reserves n bytes, or returns false if that would exceed the limit. A negative n returns bytes. A nil memory has
// no limit.
func (m *memory) reserve(n int64) bool {
	if m == nil {
		return true
	}
	if m.used.Add(n) > m.limit.Load() && n > 0 {
		m.used.Add(-n)
		return false
	}
	if n <= -largeBuffer {
		m.collect(-n)
	}
	return true
}

// collect counts n bytes of new garbage, and runs the garbage collector when there is much of it. On its own the collector
// waits until the heap has doubled, which with many large buffers would be a multiple of the limit.
func (m *memory) collect(n int64) {
	if sum := m.garbage.Add(n); sum > m.limit.Load()/2 && m.garbage.CompareAndSwap(sum, 0) {
		runtime.GC()
	}
}
