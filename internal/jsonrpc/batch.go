package jsonrpc

import "sync"

// batch is the messages that are written at once, one per line. A Conn has a batch only while it writes.
type batch struct {
	text   []byte
	wrote  int // bytes of text that are written
	frames []frame
}

// frame is the start of a request in a batch.
type frame struct {
	x  *Exchange
	id uint64 // to check that x has not been used again for another request
	at int
}

// gatherMax limits a batch of more than one message: a pipe accepts no more at once, and a request that ends while it is
// still queued need not be written.
const gatherMax = readBuffer

var batches = sync.Pool{New: func() any { return new(batch) }}

// newBatch returns a batch with room for a first message of about size bytes.
func newBatch(size int) *batch {
	b := batches.Get().(*batch)
	if cap(b.text) < size || b.text == nil {
		giveBack(b.text)
		b.text = borrow(max(gatherMax, size))[:0]
	}
	return b
}

func (b *batch) add(x *Exchange) {
	if x.raw == nil {
		b.frames = append(b.frames, frame{x, x.id, len(b.text)})
	}
	b.text = x.appendFrame(b.text)
}

// free returns b to the pool; it must not be used afterwards.
func (b *batch) free() {
	if cap(b.text) > gatherMax {
		giveBack(b.text)
		b.text = nil
	}
	clear(b.frames) // do not keep the exchanges reachable
	b.text, b.wrote, b.frames = b.text[:0], 0, b.frames[:0]
	batches.Put(b)
}
