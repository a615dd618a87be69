package mesh

import (
	"context"
	crand "crypto/rand"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/wire"
)

// inbox receives the replies to a Client's calls: with one subscription, because a streaming call has several replies, and
// one timer, because a timer per call would wake a sleeping thread for each call. It subscribes with the first call, and
// ends with the connection.
type inbox struct {
	nc     *nats.Conn
	closed atomic.Bool // the subscription has ended, with the connection

	mu      sync.Mutex
	sub     *nats.Subscription
	prefix  string
	waiting map[string]*place // by token
	tokens  *rand.ChaCha8     // 64 random bits per call: they cannot be derived from earlier tokens
	timer   *time.Timer
	armed   time.Time // when timer fires; zero: not set
	fired   time.Time // when it did last
}

// scanEvery is the least time between two scans of all calls in flight by the timer. Without a limit, thousands of long
// calls with different deadlines would cost their number squared.
const scanEvery = 10 * time.Millisecond

// place is the pending reply of one call. A nil message means that a time has passed: the deadline, or silenceLimit without
// a message. It is late by scanEvery at most; the end of a caller's context is not.
type place struct {
	reply    string // the subject
	token    string // its last part
	replies  chan *nats.Msg
	deadline time.Time
	heard    time.Time // when the last message came, or the request was sent; guarded by the inbox's mu
	due      time.Time // of the next nil message; guarded by the inbox's mu
	again    time.Time // of the one after it; guarded by the inbox's mu
}

// places are unused places.
var places = sync.Pool{New: func() any { return &place{replies: make(chan *nats.Msg, replyBacklog)} }}

// replyBacklog is the number of replies of one call that can wait: the chunks between two acknowledgements, and as many
// progress notifications.
const replyBacklog = 32

// open makes a place for the replies of one call.
func (b *inbox) open(deadline time.Time) (*place, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() {
		return nil, nats.ErrConnectionClosed
	}
	if b.waiting == nil {
		prefix := b.nc.NewInbox() + "."
		sub, err := b.nc.Subscribe(prefix+"*", b.receive)
		if err != nil {
			return nil, err
		}
		sub.SetClosedHandler(func(string) { b.end() })
		var seed [32]byte
		_, _ = crand.Read(seed[:]) // never fails
		b.sub, b.prefix, b.waiting, b.tokens = sub, prefix, map[string]*place{}, rand.NewChaCha8(seed)
	}
	p := places.Get().(*place)
	var text [128]byte
	p.reply = string(strconv.AppendUint(append(text[:0], b.prefix...), b.tokens.Uint64(), 36))
	p.token = p.reply[len(b.prefix):]
	p.deadline = deadline
	b.waiting[p.token] = p
	p.heard = time.Now()
	b.expect(p, p.heard.Add(wire.SuspectAfter), p.heard.Add(wire.SilenceLimit))
	return p, nil
}

// end wakes all calls: the connection is closed, or drained, and no reply can come any more.
func (b *inbox) end() {
	b.closed.Store(true)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.waiting {
		select {
		case p.replies <- nil:
		default: // it has replies to take, and is woken by the timer
		}
	}
}

// silence returns how long nothing has come for a call. It counts from the time from which expire counts: with a later one,
// when the goroutine of a call on a busy machine takes the message, the limit would not be over at the only moment at which
// the call looks, and it would wait for its deadline.
func (b *inbox) silence(p *place) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(p.heard)
}

// drained waits until all replies that have arrived are with their calls.
func (b *inbox) drained(ctx context.Context) {
	b.mu.Lock()
	sub := b.sub
	b.mu.Unlock()
	for {
		if n, _, err := sub.Pending(); err != nil || n == 0 || !pause.For(ctx, time.Millisecond) {
			return
		}
	}
}

// close drops what may still arrive for a call. The place must not be used after that.
func (b *inbox) close(p *place) {
	b.mu.Lock()
	delete(b.waiting, p.token)
	b.mu.Unlock()
	for len(p.replies) > 0 { // nothing can be sent to it any longer
		<-p.replies
	}
	places.Put(p)
}

// expect sets the next due time of p, after a message. The caller holds mu.
func (b *inbox) expect(p *place, due, again time.Time) {
	p.due, p.again = earlier(due, p.deadline), earlier(again, p.deadline)
	if p.due.Before(p.heard) { // the deadline is over: for expire, the timer would be late
		p.due = p.heard
	}
	b.arm(p.due)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// arm sets the timer, to fire at this time, or scanEvery after it fired last if that is later. The caller holds mu.
func (b *inbox) arm(at time.Time) {
	if earliest := b.fired.Add(scanEvery); at.Before(earliest) {
		at = earliest
	}
	if !b.armed.IsZero() && !at.Before(b.armed) {
		return
	}
	b.armed = at
	if b.timer == nil {
		b.timer = time.AfterFunc(time.Until(at), b.expire)
		return
	}
	b.timer.Reset(time.Until(at))
}

// standstill is how late the timer is at least if this process or its machine stood still. This time is no silence: messages
// that came meanwhile have not been read yet, for which there is standstill after it.
const standstill = 500 * time.Millisecond

// expire sends a nil message to the calls that are due, and sets the timer for the next one.
func (b *inbox) expire() {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if late := now.Sub(b.armed); late > standstill && !b.armed.IsZero() {
		for _, p := range b.waiting {
			shift := min(late, now.Sub(p.heard)) + standstill // something may have come since
			p.heard, p.due, p.again = p.heard.Add(shift), earlier(p.due.Add(shift), p.deadline), earlier(p.again.Add(shift), p.deadline)
		}
	}
	b.armed, b.fired = time.Time{}, now
	var next time.Time
	for _, p := range b.waiting {
		if !p.due.After(now) {
			select {
			case p.replies <- nil:
				p.due, p.again = p.again, p.deadline
				if !p.due.After(now) { // that was the deadline
					p.due = now.Add(time.Hour)
				}
			default: // its buffer is full; try again after it has read
				p.due = now.Add(100 * time.Millisecond)
			}
		}
		if next.IsZero() || p.due.Before(next) {
			next = p.due
		}
	}
	if !next.IsZero() {
		b.arm(next)
	}
}

// receive passes a reply to its call. If the buffer of the call is full the reply is dropped, because this goroutine serves
// all calls. Keepalives and progress are dropped while there is still room for the answer; other lost messages are detected
// by the numbers of the chunks.
func (b *inbox) receive(m *nats.Msg) {
	frame := m.Header.Get(wire.HeaderFrame)
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.waiting[strings.TrimPrefix(m.Subject, b.prefix)]
	if p == nil {
		return
	}
	p.heard = time.Now()
	if frame != "" {
		b.expect(p, p.heard.Add(wire.SilenceLimit), p.deadline)
	}
	switch frame {
	case wire.FrameProgress, wire.FrameAccepted, wire.FrameKeepalive:
		if len(p.replies) >= cap(p.replies)/2 { // only the holder of mu puts anything in
			return
		}
	}
	select {
	case p.replies <- m:
	default:
	}
}
