package door

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// reply is the answer to a POST. It is one JSON message, unless something precedes the result: then it is a stream of
// events.
type reply struct {
	x       *exchange
	session *session // remembers the events of a stream, so that the client can resume it; nil: it cannot
	record  *stream  // of the session; set when the answer becomes a stream

	mu        sync.Mutex
	streaming bool
	failed    bool
	keepAlive *time.Timer
}

// start writes the head of a stream. The caller holds mu.
func (p *reply) start() {
	if p.streaming {
		return
	}
	p.streaming = true
	startEvents(p.x.w)
	if p.session != nil {
		if p.record = p.session.newStream(); p.record.numbered {
			p.write(appendEvent(nil, p.record.prime(), nil))
		}
	}
	p.keepAlive = time.AfterFunc(keepAliveEvery, p.comment)
	p.flush()
}

// keepOpen makes the answer a stream if it does not arrive soon, because proxies close silent connections.
func (p *reply) keepOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keepAlive = time.AfterFunc(keepAliveEvery, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.keepAlive != nil {
			p.start()
		}
	})
}

// comment keeps the connection open.
func (p *reply) comment() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keepAlive == nil {
		return
	}
	p.write([]byte(":\n\n"))
	p.flush()
	p.keepAlive.Reset(keepAliveEvery)
}

// notify sends a notification before the result.
func (p *reply) notify(message []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start()
	p.event(message)
}

// end sends the result; nil if there is none.
func (p *reply) end(status int, message []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keepAlive != nil {
		p.keepAlive.Stop()
		p.keepAlive = nil
	}
	switch {
	case p.streaming:
		if message != nil {
			p.event(message)
		}
		p.extend()
	case message == nil:
		p.x.w.WriteHeader(http.StatusAccepted)
	default:
		defer p.x.usage.addUnread(len(message))()
		writeJSON(p.x.w, status, message)
	}
	if p.record != nil {
		p.record.end()
	}
}

// event writes one event. The caller holds mu.
func (p *reply) event(message []byte) {
	id := ""
	if p.record != nil {
		id = p.record.add(message)
	}
	p.write(appendEvent(nil, id, message))
	p.flush()
}

// slowest is how many bytes a second a client must read of a large event.
const slowest = 128 << 10

// write writes to the client. After an error nothing is written any more. The caller holds mu.
func (p *reply) write(text []byte) {
	if p.failed {
		return
	}
	defer p.x.usage.addUnread(len(text))()
	_ = http.NewResponseController(p.x.w).SetWriteDeadline(time.Now().Add(eventTimeout + time.Duration(len(text))*time.Second/slowest))
	_, err := p.x.w.Write(text)
	p.failed = err != nil
}

// extend gives net/http time to write the end of a stream. The deadline of the last event may have passed.
func (p *reply) extend() {
	if !p.failed {
		_ = http.NewResponseController(p.x.w).SetWriteDeadline(time.Now().Add(eventTimeout))
	}
}

// flush sends what was written. It ends the deadline of write, at which HTTP/2 would reset the stream even if nothing is being
// written.
func (p *reply) flush() {
	if !p.failed {
		c := http.NewResponseController(p.x.w)
		p.failed = c.Flush() != nil
		_ = c.SetWriteDeadline(time.Time{})
	}
}

func startEvents(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // of nginx
	w.WriteHeader(http.StatusOK)
}

// appendEvent appends a server-sent event. A message has no line ends.
func appendEvent(dst []byte, id string, message []byte) []byte {
	if id != "" {
		dst = append(append(append(dst, "id: "...), id...), '\n')
	}
	if message == nil { // an event whose only purpose is its id
		return append(dst, "data: \n\n"...)
	}
	dst = append(dst, "event: message\ndata: "...)
	return append(append(dst, message...), "\n\n"...)
}

// The limits of what a stream remembers.
const (
	maxEvents     = 256
	maxEventBytes = 1 << 20
)

// maxRemembered is how many bytes all streams of answers together remember.
var maxRemembered = memoryShare()

// stream is a sequence of events that remembers the last of them, so that a client whose connection broke can receive
// what it has missed.
type stream struct {
	id       string
	numbered bool          // the events have ids
	all      *atomic.Int64 // bytes that the streams of answers remember; nil: this one does not count

	mu     sync.Mutex
	events [][]byte // the last ones
	next   int      // number of the next event
	bytes  int
	ended  bool
	idle   time.Time     // since when it has ended
	gone   bool          // nobody can resume it any more
	wake   chan struct{} // closed at the next change
}

func newStream(id string, numbered bool) *stream {
	return &stream{id: id, numbered: numbered, wake: make(chan struct{})}
}

func (s *stream) eventID(n int) string {
	if !s.numbered {
		return ""
	}
	return s.id + "-" + strconv.Itoa(n)
}

// prime returns the id of an event without a message, from which a client can resume before the first one.
func (s *stream) prime() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.eventID(s.next - 1)
}

// add appends an event and returns its id.
func (s *stream) add(message []byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.eventID(s.next)
	s.next++
	s.events = append(s.events, message)
	s.grow(len(message))
	full := s.gone || s.all != nil && s.all.Load() > maxRemembered
	for len(s.events) > 0 && (full || len(s.events) > 1 && (len(s.events) > maxEvents || s.bytes > maxEventBytes)) {
		s.drop()
	}
	s.changed()
	return id
}

// drop forgets the first event. The caller holds mu.
func (s *stream) drop() {
	s.grow(-len(s.events[0]))
	s.events[0] = nil
	s.events = s.events[1:]
}

func (s *stream) grow(n int) {
	s.bytes += n
	if s.all != nil {
		s.all.Add(int64(n))
	}
}

// forget forgets all events, and does not remember any more.
func (s *stream) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	for len(s.events) > 0 {
		s.drop()
	}
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended, s.idle = true, time.Now()
		s.changed()
	}
}

// changed wakes those that wait for events. The caller holds mu.
func (s *stream) changed() {
	close(s.wake)
	s.wake = make(chan struct{})
}

// from returns the events from number n on, as far as they are remembered, and the number after the last one.
func (s *stream) from(n int) (events [][]byte, next int, ended bool, wake <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.next - len(s.events)
	skip := min(max(n-first, 0), len(s.events))
	return append([][]byte{}, s.events[skip:]...), s.next, s.ended, s.wake
}

// wakeReaders lets those that wait for events look again.
func (s *stream) wakeReaders() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed()
}

// isForgotten reports whether a stream has ended so long ago that no client resumes it.
func (s *stream) isForgotten(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended && now.Sub(s.idle) > resumeTime
}
