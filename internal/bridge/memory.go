package bridge

import (
	"runtime"
	"sync/atomic"

	"github.com/extmesh/extmesh/internal/memlimit"
)

// memory bounds the bytes of payloads that a bridge holds for all of its extensions together: requests in flight, and
// lines of children that are not complete yet. It is one number for all, so that a bridge of a thousand extensions
// stays within the memory of its host.
type memory struct {
	limit   int64
	used    atomic.Int64
	garbage atomic.Int64 // bytes in large pieces that were returned since the last collection that they led to
}

// defaultMemory is the limit where neither extensions.yaml nor the system sets one. A garbage collector needs as much
// again.
const defaultMemory = 160 << 20

// largePiece is what is worth counting as garbage.
const largeBuffer = 256 << 10

// newMemory makes a memory of limit bytes; 0: a quarter of what this process may have, at most defaultMemory.
func newMemory(limit int64) *memory {
	if limit <= 0 {
		limit = defaultMemory
		if most := memlimit.Bytes(); most > 0 {
			limit = min(limit, most/4)
		}
	}
	return &memory{limit: limit}
}

// reserve takes n bytes, unless that is over the limit; a negative n returns them. A nil memory has no limit.
func (m *memory) reserve(n int64) bool {
	if m == nil {
		return true
	}
	if m.used.Add(n) > m.limit && n > 0 {
		m.used.Add(-n)
		return false
	}
	if n <= -largeBuffer {
		m.collect(-n)
	}
	return true
}

// collect counts n bytes that are garbage from now on. The collector on its own waits until the heap has doubled, which
// with many large pieces takes a multiple of the limit.
func (m *memory) collect(n int64) {
	if sum := m.garbage.Add(n); sum > m.limit/2 && m.garbage.CompareAndSwap(sum, 0) {
		runtime.GC()
	}
}
