package jsonrpc

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"
)

// writer writes the messages of a Conn. If no goroutine is writing, the one that adds a message writes it itself, with one
// non-blocking attempt if the destination has TryWrite (as a pipe does). All other messages go through a queue to one
// goroutine, which writes everything in the queue with a single call and ends when the queue is empty. No lock is held
// while writing.
type writer struct {
	to      io.Writer
	try     interface{ TryWrite([]byte) (int, error) } // to, if it can
	pending *pending
	failed  func() (undo func() bool) // called after a failed write

	mu      *sync.Mutex // the Conn's; guards pending and everything below
	head    *Exchange   // the queue
	tail    *Exchange
	raws    int           // answers and notifications in it
	writing bool          // a goroutine owns out and to
	left    bool          // writing waits for the goroutine that begin will start
	out     *batch        // the batch that is being written
	werr    error         // the error after which nothing can be written
	drainer func()        // w.drain, as one value for all go statements; nil before begin
	quit    chan struct{} // closed when the goroutine that end waits for has stopped writing
	unbreak func() bool   // undoes failed; set after a failed write
}

// send queues x and starts writing, unless another goroutine is writing. The caller holds mu; send releases it.
func (w *writer) send(x *Exchange) {
	x.queued, x.prev, x.next = true, w.tail, nil
	if w.tail == nil {
		w.head = x
	} else {
		w.tail.next = x
	}
	w.tail = x
	if w.writing || x.Hold { // the writing goroutine checks the queue before it stops
		w.mu.Unlock()
		return
	}
	w.write()
}

// unlink removes x from the write queue, if it is queued. The caller holds mu.
func (w *writer) unlink(x *Exchange) {
	if x.prev == nil && x != w.head {
		return
	}
	if x.prev == nil {
		w.head = x.next
	} else {
		x.prev.next = x.next
	}
	if x.next == nil {
		w.tail = x.prev
	} else {
		x.next.prev = x.prev
	}
	x.prev, x.next = nil, nil
}

// flush writes the exchanges that were queued with Hold, unless they have already been written.
func (w *writer) flush() {
	w.mu.Lock()
	if w.writing || w.head == nil {
		w.mu.Unlock()
		return
	}
	w.write()
}

// write writes the queue: first with one attempt that cannot block, if w supports that, and the rest on a goroutine. The
// caller holds mu, and no goroutine is writing; write releases mu.
func (w *writer) write() {
	w.writing = true
	if w.try == nil {
		w.handOver()
		w.mu.Unlock()
		return
	}
	buf := w.gather()
	w.mu.Unlock()
	n, err := w.try.TryWrite(buf)
	w.mu.Lock()
	w.wrote(n, err)
	if err == nil && w.out == nil && w.head == nil {
		w.writing = false
		w.stopped()
	} else {
		w.handOver() // the rest, and the error if there was one
	}
	w.mu.Unlock()
}

// gather returns the bytes to write next: the rest of a batch, or a new batch from the queue. (Exchanges that have ended
// are no longer in the queue: see remove.) The caller holds mu and owns writing.
func (w *writer) gather() []byte {
	if w.out != nil {
		return w.out.text[w.out.wrote:]
	}
	for w.head != nil {
		x := w.head
		size := x.maxFrame()
		if w.out != nil && len(w.out.text)+size > gatherMax {
			break
		}
		w.unlink(x)
		if x.raw != nil {
			w.raws--
		}
		x.queued = false
		if w.out == nil {
			w.out = newBatch(size)
		}
		w.out.add(x)
		if x.written != nil {
			x.written()
		}
	}
	if w.out == nil {
		return nil
	}
	return w.out.text
}

// wrote records that n more bytes of the batch are written. After an error nothing more is written, and a request of
// which no byte was written counts as still queued, so that it fails with ran "no": a write to a process that has just
// exited fails immediately, and the caller can safely retry. The caller holds mu.
func (w *writer) wrote(n int, err error) {
	b := w.out
	b.wrote += n
	if err != nil {
		w.werr = err
		for _, f := range b.frames {
			if f.at >= b.wrote && w.pending.of[f.id] == f.x {
				f.x.queued = true
			}
		}
	}
	if err != nil || b.wrote == len(b.text) {
		w.out = nil
		b.free()
	}
}

// handOver continues writing on a goroutine. The caller holds mu and owns writing. It is not called after end has found that no goroutine is writing: by then calls are refused, and no handler is running that could answer.
func (w *writer) handOver() {
	if w.drainer == nil {
		w.left = true
		return
	}
	go w.drainer() // owned by Run, which waits in end; ends when the queue is empty, or with a write error
}

// stopped unblocks end, if it waits, after the last write. The caller holds mu.
func (w *writer) stopped() {
	if w.quit != nil {
		close(w.quit)
		w.quit = nil
	}
}

// drain owns writing: it writes until the queue is empty.
func (w *writer) drain() {
	w.mu.Lock()
	for w.werr == nil {
		buf := w.gather()
		if len(buf) == 0 {
			w.writing = false
			w.stopped()
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		n, err := w.to.Write(buf)
		w.mu.Lock()
		if err == nil {
			n = len(buf)
		}
		w.wrote(min(max(n, 0), len(buf)), err)
	}
	w.mu.Unlock()
	unbreak := w.failed()
	w.mu.Lock()
	w.unbreak = unbreak // writing stays true, so that nothing more is written
	w.stopped()
	w.mu.Unlock()
}

// begin starts the goroutine for messages that were handed over before Run.
func (w *writer) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drainer = w.drain
	if w.left {
		w.left = false
		w.handOver()
	}
}

// end waits until everything queued is written, or writing fails, and returns the error. That includes answers
// that are queued during another goroutine's non-blocking attempt.
func (w *writer) end() error {
	quit := make(chan struct{})
	w.mu.Lock()
	w.quit = quit
	if !w.writing || w.unbreak != nil {
		w.stopped()
	}
	w.mu.Unlock()
	limitWrite(w.to)
	<-quit
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unbreak != nil {
		w.unbreak()
	}
	return w.werr
}

var errNotReading = errors.New("the peer does not read its messages")

// sendRaw queues a whole message, unless limit of them are already queued. written, if not nil, is called under mu when
// the message is being written, and not if it is refused.
func (c *Conn) sendRaw(raw []byte, limit int, written func()) error {
	c.mu.Lock()
	if c.gone != nil && c.serving.running == 0 {
		c.mu.Unlock()
		return c.gone
	}
	if c.out.raws >= limit {
		c.mu.Unlock()
		c.dropped.Add(1)
		return errNotReading
	}
	c.out.raws++
	c.out.send(&Exchange{raw: raw, written: written})
	return nil
}

// limitWrite limits the time of the last write to a peer that may have stopped reading.
func limitWrite(w io.Writer) {
	if d, ok := w.(interface{ SetWriteDeadline(time.Time) error }); ok {
		d.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	}
}

func toValidUTF8(line []byte) []byte { return bytes.ToValidUTF8(line, []byte("\uFFFD")) }
