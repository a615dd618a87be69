package jsonrpc

import "sync"

// The sizes of buffers. Beyond keepBuffer they are as large as the line that they were made for.
const (
	smallBuffer = 4 << 10
	lineBuffer  = 16 << 10 // for most answers to initialize and tools/list
	readBuffer  = 64 << 10 // a pipe's capacity on Linux
	keepBuffer  = 256 << 10
	poolBuffer  = 4 << 20 // the largest in a pool, until the next garbage collections: the number in a pool is not limited
)

// The unused buffers, for the next line of any connection. A Pool holds arrays without an allocation, but not slices.
var (
	lines    = sync.Pool{New: func() any { return new([lineBuffer]byte) }}
	pipefuls = sync.Pool{New: func() any { return new([readBuffer]byte) }}
	middling = sync.Pool{New: func() any { return new([keepBuffer]byte) }}
	large    sync.Pool // *[]byte; without it a large line would spend most of its time on growing buffers
)

// borrow returns a buffer of n bytes or more. It contains old data of other lines.
func borrow(n int) []byte {
	switch {
	case n <= lineBuffer:
		return lines.Get().(*[lineBuffer]byte)[:]
	case n <= readBuffer:
		return pipefuls.Get().(*[readBuffer]byte)[:]
	case n <= keepBuffer:
		return middling.Get().(*[keepBuffer]byte)[:]
	}
	if n <= poolBuffer {
		if b, ok := large.Get().(*[]byte); ok && len(*b) >= n {
			return *b
		}
	}
	return make([]byte, n)
}

// giveBack returns a buffer from borrow, of any length, to its pool, and ignores any other buffer. The caller must not
// use it again.
func giveBack(b []byte) {
	b = b[:cap(b)]
	switch n := len(b); {
	case n == lineBuffer:
		lines.Put((*[lineBuffer]byte)(b))
	case n == readBuffer:
		pipefuls.Put((*[readBuffer]byte)(b))
	case n == keepBuffer:
		middling.Put((*[keepBuffer]byte)(b))
	case n > keepBuffer && n <= poolBuffer:
		kept := b // &b would make b escape in every case
		large.Put(&kept)
	}
}
