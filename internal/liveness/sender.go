package liveness

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Senders sends the heartbeats of any number of instances from one goroutine with one timer, because a bridge has up
// to a thousand instances and each goroutine has a stack. Run is that goroutine. Add and Stop may be called from any
// goroutine at any time, also before Run.
type Senders struct {
	interval time.Duration
	window   time.Duration // how early a heartbeat may be sent, to share a wakeup with others
	wake     chan struct{} // receives when a heartbeat is due earlier than the timer

	// publishing is held while one heartbeat is built and published, so that Stop can wait for it.
	publishing sync.Mutex

	mu  sync.Mutex
	due schedule
}

// Sender schedules one instance's heartbeats: the first at a random offset within the interval, so that the instances
// of one bridge do not all send at once, then one per interval ±10 %, and one immediately after each Kick.
type Sender struct {
	set     *Senders
	current func() heartbeat.Message
	seq     uint64 // of the last heartbeat published; guarded by the set's publishing

	// The set's mu guards these.
	due   time.Time // the latest time for the next heartbeat; zero: now
	index int       // in the schedule; -1: stopped
}

// NewSenders returns an empty set that sends heartbeats every interval (0: DefaultInterval). The interval is clamped
// to MinInterval and MaxInterval, as the receiver does.
func NewSenders(interval time.Duration) *Senders {
	if interval == 0 {
		interval = heartbeat.DefaultInterval
	}
	interval = min(max(interval, heartbeat.MinInterval), heartbeat.MaxInterval)
	return &Senders{interval: interval, window: interval / 60, wake: make(chan struct{}, 1)}
}

// Add starts the heartbeats of one more instance. current returns the heartbeat to send; the set fills in its Seq, TS
// and IntervalMS. Only Run's goroutine calls current, which must not stop a Sender of the same set.
func (s *Senders) Add(current func() heartbeat.Message) *Sender {
	b := &Sender{set: s, current: current, due: time.Now().Add(rand.N(s.interval))}
	s.mu.Lock()
	heap.Push(&s.due, b)
	s.mu.Unlock()
	s.poke()
	return b
}

// Kick requests a heartbeat now because the result of current has changed; current is called after the kick. Kick
// never blocks, and several kicks before the next heartbeat count as one. It does nothing on a nil or stopped Sender.
func (b *Sender) Kick() {
	if b == nil {
		return
	}
	b.set.mu.Lock()
	kicked := b.index >= 0 && !b.due.IsZero()
	if kicked {
		b.due = time.Time{}
		heap.Fix(&b.set.due, b.index)
	}
	b.set.mu.Unlock()
	if kicked {
		b.set.poke()
	}
}

// Stop ends the heartbeats. It waits while any Sender of the set is publishing, so that no heartbeat of this one
// follows its return.
func (b *Sender) Stop() {
	s := b.set
	s.publishing.Lock()
	defer s.publishing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.index >= 0 {
		heap.Remove(&s.due, b.index)
	}
}

func (s *Senders) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// republish is the delay before a failed publish is tried again.
const republish = time.Second

// Run publishes heartbeats until ctx is done, and then returns nil. Heartbeats that are due within a sixtieth of the
// Run publishes heartbeats until ctx is done, and then returns nil. Heartbeats that are due within a sixtieth of the
// interval are sent together, but never earlier after the previous one than the interval -10 %. After a failed
// publish the heartbeat is tried again in a second with the same sequence number. publish must not stop a Sender of
// the set.
func (s *Senders) Run(ctx context.Context, publish func(heartbeat.Message) error) error {
	timer := time.NewTimer(s.interval)
	defer timer.Stop()
	for {
		now := time.Now()
		for ctx.Err() == nil && s.publishDue(now, publish) {
		}
		if next, ok := s.next(); ok {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// next returns the time of the next heartbeat, or false if the set is empty.
func (s *Senders) next() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.due) == 0 {
		return time.Time{}, false
	}
	return s.due[0].due, true
}

// publishDue publishes one heartbeat that may be sent at now, or returns false if none is due.
func (s *Senders) publishDue(now time.Time, publish func(heartbeat.Message) error) bool {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	b := s.nextDue(now)
	if b == nil {
		return false
	}
	beat := b.current()
	beat.Seq, beat.TS, beat.IntervalMS = b.seq+1, time.Now(), s.interval.Milliseconds()
	if publish(beat) == nil {
		b.seq++
	} else {
		s.retry(b)
	}
	return true
}

// nextDue returns a Sender whose heartbeat may be sent at now and sets its next time. It does so before current is
// called, so that a kick during the publish leads to one more heartbeat.
func (s *Senders) nextDue(now time.Time) *Sender {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.due) == 0 || s.due[0].due.After(now.Add(s.window)) {
		return nil
	}
	b := s.due[0]
	// The earliest time is one window later: a heartbeat may be sent up to a window before it is due.
	earliest := s.interval*9/10 + s.window
	b.due = time.Now().Add(earliest + rand.N(s.interval*11/10-earliest))
	heap.Fix(&s.due, b.index)
	return b
}

// retry schedules b again soon, unless it was kicked since.
func (s *Senders) retry(b *Sender) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.due.IsZero() {
		b.due = time.Now().Add(republish + s.window)
		heap.Fix(&s.due, b.index)
	}
}
