package daemon

import "sync"

var floor struct {
	once sync.Once
	all  []byte // counts as live; takes addresses but no memory, because it is never written to
}

// HeapFloor lets garbage grow to about n bytes before it is collected, instead of 4 MB, until the process ends. A program that
// serves thousands of calls a second thereby saves a tenth of its processor time (docs/performance.md). A higher GOGC would do
// the same for a large heap, too, where it would cost much memory. Only the first call counts.
func HeapFloor(n int) { floor.once.Do(func() { floor.all = make([]byte, n) }) }
