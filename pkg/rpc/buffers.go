package rpc

import "sync"

// The sizes of buffers. Beyond keepBuffer they are as large as the line that they were made for.
const (
	smallBuffer = 4 << 10
	readBuffer  = 64 << 10 // a pipe's capacity on Linux
	keepBuffer  = 256 << 10
	poolBuffer  = 4 << 20 // the largest that is kept until the next collection or two: nothing bounds how many are
)

// The buffers that nobody needs at the moment, for the next line of any connection. Arrays go through a Pool without
// an allocation, slices do not.
var (
	pipefuls = sync.Pool{New: func() any { return new([readBuffer]byte) }}
	middling = sync.Pool{New: func() any { return new([keepBuffer]byte) }}
	large    sync.Pool // *[]byte; without it most of the time for a large line would go into growing towards it
)

// borrow returns a buffer of n bytes or more. What is in it is somebody else's.
func borrow(n int) []byte {
	switch {
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

// giveBack takes what borrow returned, whatever its length is now, and lets go of anything else. The caller must not
// touch it again.
func giveBack(b []byte) {
	b = b[:cap(b)]
	switch n := len(b); {
	case n == readBuffer:
		pipefuls.Put((*[readBuffer]byte)(b))
	case n == keepBuffer:
		middling.Put((*[keepBuffer]byte)(b))
	case n > keepBuffer && n <= poolBuffer:
		kept := b // b itself would be allocated in every case
		large.Put(&kept)
	}
}
