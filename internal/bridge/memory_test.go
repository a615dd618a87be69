package bridge

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestMemory(t *testing.T) {
	m := newMemory(100)
	if !m.reserve(60) || m.reserve(41) || !m.reserve(40) || m.reserve(1) {
		t.Errorf("%d of 100 bytes are taken", m.used.Load())
	}
	if !m.reserve(-60) || !m.reserve(60) || !m.reserve(-100) || m.used.Load() != 0 {
		t.Errorf("%d bytes are taken, of those that were returned", m.used.Load())
	}
	var none *memory
	if !none.reserve(math.MaxInt64) {
		t.Error("a nil memory has a limit")
	}
}

func TestDefaultMemory(t *testing.T) {
	before := debug.SetMemoryLimit(200 << 20) // as GOMEMLIMIT
	defer debug.SetMemoryLimit(before)
	if m := newMemory(0); m.limit.Load() > 50<<20 {
		t.Errorf("the limit is %d, want a quarter of 200 MiB at most", m.limit.Load())
	}
	if m := newMemory(90 << 20); m.limit.Load() != 90<<20 {
		t.Errorf("the limit is %d, want that of the settings", m.limit.Load())
	}
}
