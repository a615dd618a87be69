package jsonrpc

import (
	"bytes"
	"errors"
)

// send queues x and starts writing, unless another goroutine is writing. The caller holds mu; send releases it.
func (c *Conn) send(x *Exchange) {
	x.queued, x.prev, x.next = true, c.tail, nil
	if c.tail == nil {
		c.head = x
	} else {
		c.tail.next = x
	}
	c.tail = x
	if c.writing || x.Hold { // the writing goroutine checks the queue before it stops
		c.mu.Unlock()
		return
	}
	c.write()
}

// unlink removes x from the write queue, if it is queued. The caller holds mu.
func (c *Conn) unlink(x *Exchange) {
	if x.prev == nil && x != c.head {
		return
	}
	if x.prev == nil {
		c.head = x.next
	} else {
		x.prev.next = x.next
	}
	if x.next == nil {
		c.tail = x.prev
	} else {
		x.next.prev = x.prev
	}
	x.prev, x.next = nil, nil
}

// Flush writes the exchanges that were started with Hold, unless they have already been written.
func (c *Conn) Flush() {
	c.mu.Lock()
	if c.writing || c.head == nil {
		c.mu.Unlock()
		return
	}
	c.write()
}

// write writes the queue: first with one attempt that cannot block, if w supports that, and the rest on a goroutine. The
// caller holds mu, and no goroutine is writing; write releases mu.
func (c *Conn) write() {
	c.writing = true
	if c.try == nil {
		c.handOver()
		c.mu.Unlock()
		return
	}
	buf := c.gather()
	c.mu.Unlock()
	n, err := c.try.TryWrite(buf)
	c.mu.Lock()
	c.wrote(n, err)
	if err == nil && c.out == nil && c.head == nil {
		c.writing = false
		c.stopped()
	} else {
		c.handOver() // the rest, and the error if there was one
	}
	c.mu.Unlock()
}

// gather returns the bytes to write next: the rest of a batch, or a new batch from the queue. (Exchanges that have ended
// are no longer in the queue: see remove.) The caller holds mu and owns writing.
func (c *Conn) gather() []byte {
	if c.out != nil {
		return c.out.text[c.out.wrote:]
	}
	for c.head != nil {
		x := c.head
		size := x.maxFrame()
		if c.out != nil && len(c.out.text)+size > gatherMax {
			break
		}
		c.unlink(x)
		if x.raw != nil {
			c.raws--
		}
		x.queued = false
		if c.out == nil {
			c.out = newBatch(size)
		}
		c.out.add(x)
		if x.written != nil {
			x.written()
		}
	}
	if c.out == nil {
		return nil
	}
	return c.out.text
}

// wrote records that n more bytes of the batch are written. After an error nothing more is written, and a request of
// which no byte was written counts as still queued, so that it fails with ran "no": a write to a process that has just
// exited fails immediately, and the caller can safely retry. The caller holds mu.
func (c *Conn) wrote(n int, err error) {
	b := c.out
	b.wrote += n
	if err != nil {
		c.werr = err
		for _, f := range b.frames {
			if f.at >= b.wrote && c.pending.get(f.id) == f.x {
				f.x.queued = true
			}
		}
	}
	if err != nil || b.wrote == len(b.text) {
		c.out = nil
		b.free()
	}
}

// handOver continues writing on a goroutine. The caller holds mu and owns writing. It is not called after endWriting has
// found that no goroutine is writing: by then calls are refused, and no handler is running that could answer.
func (c *Conn) handOver() {
	if c.drainer == nil {
		c.left = true
		return
	}
	go c.drainer() // owned by Run, which waits in endWriting; ends when the queue is empty, or with a write error
}

// stopped unblocks endWriting, if it waits, after the last write. The caller holds mu.
func (c *Conn) stopped() {
	if c.quit != nil {
		close(c.quit)
		c.quit = nil
	}
}

// drain owns writing: it writes until the queue is empty.
func (c *Conn) drain() {
	c.mu.Lock()
	for c.werr == nil {
		buf := c.gather()
		if len(buf) == 0 {
			c.writing = false
			c.stopped()
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		n, err := c.w.Write(buf)
		c.mu.Lock()
		if err == nil {
			n = len(buf)
		}
		c.wrote(min(max(n, 0), len(buf)), err)
	}
	c.mu.Unlock()
	unbreak := c.breakRead()
	c.mu.Lock()
	c.unbreak = unbreak // writing stays true, so that nothing more is written
	c.stopped()
	c.mu.Unlock()
}

// beginWriting starts the goroutine for messages that were handed over before Run.
func (c *Conn) beginWriting() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drainer = c.drain
	if c.left {
		c.left = false
		c.handOver()
	}
}

// endWriting waits until everything queued is written, or writing fails, and returns the error. That includes answers
// that are queued during another goroutine's non-blocking attempt.
func (c *Conn) endWriting() error {
	quit := make(chan struct{})
	c.mu.Lock()
	c.quit = quit
	if !c.writing || c.unbreak != nil {
		c.stopped()
	}
	c.mu.Unlock()
	c.interruptWrite()
	<-quit
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unbreak != nil {
		c.unbreak()
	}
	return c.werr
}

var errNotReading = errors.New("the peer does not read its messages")

// sendRaw queues a whole message, unless limit of them are already queued. written, if not nil, is called under mu when
// the message is being written, and not if it is refused.
func (c *Conn) sendRaw(raw []byte, limit int, written func()) error {
	c.mu.Lock()
	if c.gone != nil && c.running == 0 {
		c.mu.Unlock()
		return c.gone
	}
	if c.raws >= limit {
		c.mu.Unlock()
		c.dropped.Add(1)
		return errNotReading
	}
	c.raws++
	c.send(&Exchange{raw: raw, written: written})
	return nil
}

func toValidUTF8(line []byte) []byte { return bytes.ToValidUTF8(line, []byte("\uFFFD")) }
