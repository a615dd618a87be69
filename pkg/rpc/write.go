package rpc

import (
	"bytes"
	"errors"
)

// send queues x and makes sure that somebody writes it. The caller holds mu; send releases it.
func (c *Conn) send(x *Exchange) {
	x.queued, x.prev, x.next = true, c.tail, nil
	if c.tail == nil {
		c.head = x
	} else {
		c.tail.next = x
	}
	c.tail = x
	if c.writing || x.Hold { // whoever writes looks at the queue again before it stops
		c.mu.Unlock()
		return
	}
	c.write()
}

// unlink takes x out of the write queue, if it is in it. The caller holds mu.
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

// Flush writes the exchanges that were started with Hold, if nobody has written them yet.
func (c *Conn) Flush() {
	c.mu.Lock()
	if c.writing || c.head == nil {
		c.mu.Unlock()
		return
	}
	c.write()
}

// write writes the queue: with one attempt that cannot block, where there is such a thing, and what that leaves on a
// goroutine. The caller holds mu, and nobody is writing; write releases it.
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
	c.took(n, err)
	if err == nil && c.out == nil && c.head == nil {
		c.writing = false
		c.stop()
	} else {
		c.handOver() // the rest, and the error if there was one
	}
	c.mu.Unlock()
}

// gather is what to write next: the rest of an attempt, or the queue as far as it goes into one batch. (What has ended
// meanwhile is not in it any more: see take.) The caller holds mu and owns writing.
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

// took notes that n bytes more of the batch are written. After an error nobody writes any more, and a request of
// which the other side has not seen a byte is one that surely did not run, as if it had never left the queue: to a
// process that has just died a write fails at once, and its callers may try again without harm. The caller holds mu.
func (c *Conn) took(n int, err error) {
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

// handOver leaves writing to a goroutine. The caller holds mu and owns writing. Nobody hands over once Run has seen
// in endWriting that nobody writes: calls are refused by then, and answers need a handler that runs.
func (c *Conn) handOver() {
	if c.drainer == nil {
		c.left = true
		return
	}
	go c.drainer() // owned by Run, which waits in endWriting; ends when the queue is empty, or with a write error
}

// stop says that nobody writes any more, and ends writing if Run waits for that. The caller holds mu.
func (c *Conn) stop() {
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
			c.stop()
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		n, err := c.w.Write(buf)
		c.mu.Lock()
		if err == nil {
			n = len(buf)
		}
		c.took(min(max(n, 0), len(buf)), err)
	}
	c.mu.Unlock()
	unbreak := c.breakRead()
	c.mu.Lock()
	c.unbreak = unbreak // writing stays taken: nobody writes any more
	c.stop()
	c.mu.Unlock()
}

// beginWriting starts what was left to a goroutine before Run.
func (c *Conn) beginWriting() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drainer = c.drain
	if c.left {
		c.left = false
		c.handOver()
	}
}

// endWriting waits until all that is queued is written, or writing fails, and returns why. Somebody may be at an
// attempt that cannot block, with answers gathering behind it: they are waited for, too.
func (c *Conn) endWriting() error {
	quit := make(chan struct{})
	c.mu.Lock()
	c.quit = quit
	if !c.writing || c.unbreak != nil {
		c.stop()
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

var errNotReading = errors.New("the peer does not read what it is sent")

// sendRaw queues a whole message unless limit of them wait already. written, if not nil, is called under mu
// when the message is on its way, and not when it is refused.
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
