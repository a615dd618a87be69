package rpc

import (
	"bytes"
	"errors"
)

// send queues x and makes sure that somebody writes it. The caller holds mu; send releases it.
func (c *Conn) send(x *Exchange) {
	x.queued, x.next = true, nil
	if c.tail == nil {
		c.head = x
	} else {
		c.tail.next = x
	}
	c.tail = x
	if c.writing { // whoever writes looks at the queue again before it stops
		c.mu.Unlock()
		return
	}
	c.writing = true
	if c.try == nil || c.pending.n > directMax {
		c.mu.Unlock()
		c.wake <- struct{}{} // never blocks: only the owner of writing sends, and the loop takes it over
		return
	}
	buf := c.gather()
	c.mu.Unlock()
	n, err := c.try.TryWrite(buf)
	c.mu.Lock()
	c.wrote(n, err)
	if err == nil && len(c.wbuf) == 0 && c.head == nil && !c.quitting {
		c.writing = false
		c.mu.Unlock()
		return
	}
	c.mu.Unlock() // the rest, and the error if there was one, is for the loop; at the end it waits for this word
	c.wake <- struct{}{}
}

// directMax is how many calls may be in flight for a sender to write by itself: a lone call saves the
// hand-over to the writing goroutine, a crowd gains more by being written together.
const directMax = 2

// gather moves the queue into wbuf, leaving out what has ended meanwhile. The caller holds mu and owns
// writing.
func (c *Conn) gather() []byte {
	if cap(c.wbuf) > keepBuffer && len(c.wbuf) == 0 {
		c.wbuf = nil
	}
	for c.head != nil && len(c.wbuf) < gatherMax {
		x := c.head
		if c.head = x.next; c.head == nil {
			c.tail = nil
		}
		x.next = nil
		switch {
		case x.raw != nil:
			c.raws--
		case c.pending.get(x.id) != x:
			continue // timed out or cancelled before it was written: it is not run
		}
		x.queued = false
		if x.raw == nil {
			c.frames = append(c.frames, frame{x, x.id, len(c.wbuf)})
		}
		c.wbuf = x.appendFrame(c.wbuf)
		if x.written != nil {
			x.written()
		}
	}
	return c.wbuf
}

// gatherMax bounds one write: a pipe takes no more at once, and what has ended by then is left out.
const gatherMax = 64 << 10

// frame is where a request begins in wbuf; a negative place has been passed.
type frame struct {
	x  *Exchange
	id uint64 // x may be another's by now
	at int
}

// wrote takes n bytes off wbuf. After an error nobody writes any more, and a request of which the other side has
// not seen a byte is one that surely did not run, as if it had never left the queue: to a process that has just
// died a write fails at once, and its callers may try again without harm. The caller holds mu.
func (c *Conn) wrote(n int, err error) {
	c.wbuf = c.wbuf[:copy(c.wbuf, c.wbuf[n:])]
	for i := range c.frames {
		f := &c.frames[i]
		f.at -= n
		if err != nil && f.at >= 0 && c.pending.get(f.id) == f.x {
			f.x.queued = true
		}
	}
	if len(c.wbuf) == 0 || err != nil {
		clear(c.frames) // they are not ours to keep alive
		c.frames = c.frames[:0]
	}
	if err != nil {
		c.werr = err
	}
}

// writeLoop writes what was left to it until quit is closed and nothing is left.
func (c *Conn) writeLoop(quit <-chan struct{}) error {
	for {
		select {
		case <-c.wake:
			if err := c.drain(); err != nil {
				return err
			}
		case <-quit:
			c.mu.Lock()
			c.quitting = true
			writing := c.writing
			c.mu.Unlock()
			if !writing {
				return nil
			}
			// Somebody is at an attempt that cannot block, and answers may have gathered behind it.
			<-c.wake
			return c.drain()
		}
	}
}

// drain owns writing: it writes until the queue is empty.
func (c *Conn) drain() error {
	for {
		c.mu.Lock()
		if err := c.werr; err != nil { // writing stays taken: nobody writes any more
			c.mu.Unlock()
			return err
		}
		buf := c.gather()
		if len(buf) == 0 {
			c.writing = false
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		n, err := c.w.Write(buf)
		c.mu.Lock()
		if err == nil {
			n = len(buf)
		}
		c.wrote(min(max(n, 0), len(buf)), err)
		c.mu.Unlock()
	}
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
