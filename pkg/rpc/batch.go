package rpc

import "sync"

// batch is what is written at once: messages, a line each. A Conn has one only while it writes.
type batch struct {
	text   []byte
	wrote  int // bytes of text that are written
	frames []frame
}

// frame is where a request begins in a batch.
type frame struct {
	x  *Exchange
	id uint64 // x may be another's by now
	at int
}

// gatherMax bounds a batch of more than one message: a pipe takes no more at once, and what has ended before it is
// written is left out.
const gatherMax = readBuffer

var batches = sync.Pool{New: func() any { return new(batch) }}

// newBatch makes a batch whose first message has about size bytes.
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

// free gives b back; nobody may use it any more.
func (b *batch) free() {
	if cap(b.text) > gatherMax {
		giveBack(b.text)
		b.text = nil
	}
	clear(b.frames) // they are not ours to keep alive
	b.text, b.wrote, b.frames = b.text[:0], 0, b.frames[:0]
	batches.Put(b)
}
