package door

import (
	"io"
	"runtime"
	"sync"
)

// The bytes that wait for a client that does not read. A reply waits beyond maxQueued; a notification is dropped beyond
// maxNotices.
const (
	maxQueued  = 32 << 20
	maxNotices = 4 << 20
)

// writer writes messages as lines. Messages that are added while one is being written are written together. It has a
// goroutine only while there is something to write that its callers do not write themselves.
type writer struct {
	w      io.Writer
	failed chan struct{} // closed after a failed write

	mu      sync.Mutex
	room    sync.Cond // signalled when queued has become empty
	queued  []byte
	spare   []byte // the buffer that is not in use
	writing bool
	err     error
	waiting []chan struct{} // closed when nothing is left to write
}

func newWriter(w io.Writer) *writer {
	out := &writer{w: w, failed: make(chan struct{})}
	out.room.L = &out.mu
	return out
}

// reply adds a response. It waits only while the queue is full.
func (o *writer) reply(message []byte) {
	if o.put(message) {
		go o.drain() // ends when the queue is empty or a write fails
	}
}

// write adds a response and writes what is queued, unless another goroutine is writing already.
func (o *writer) write(message []byte) {
	if o.put(message) {
		o.drain()
	}
}

// put adds a response when the queue has room for it. It reports whether its caller has to call drain.
func (o *writer) put(message []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queued) > maxQueued && o.err == nil {
		o.room.Wait()
	}
	return o.add(message)
}

// notify adds a notification, unless the client does not read.
func (o *writer) notify(message []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queued) <= maxNotices && o.add(message) {
		go o.drain() // ends when the queue is empty or a write fails
	}
}

// add adds a message. It reports whether nobody is writing: then drain has to be called. The caller holds mu.
func (o *writer) add(message []byte) bool {
	if o.err != nil || message == nil {
		return false
	}
	o.queued = append(append(o.queued, message...), '\n')
	first := !o.writing
	o.writing = true
	return first
}

// drain writes until nothing is left, after yielding to goroutines that may add something.
func (o *writer) drain() {
	runtime.Gosched()
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queued) > 0 && o.err == nil {
		text := o.queued
		o.queued, o.spare = o.spare[:0], nil
		o.room.Broadcast()
		o.mu.Unlock()
		_, err := o.w.Write(text)
		o.mu.Lock()
		if cap(text) <= 1<<20 { // do not keep the memory of large results
			o.spare = text[:0]
		}
		if err != nil {
			o.err = err
			close(o.failed)
		}
	}
	o.writing = false
	o.room.Broadcast()
	for _, c := range o.waiting {
		close(c)
	}
	o.waiting = nil
}

// idle returns a channel that is closed when everything is written, or cannot be.
func (o *writer) idle() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := make(chan struct{})
	if !o.writing {
		close(c)
	} else {
		o.waiting = append(o.waiting, c)
	}
	return c
}

func (o *writer) error() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
