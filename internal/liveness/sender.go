package liveness

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Senders sends the heartbeats of any number of instances from one goroutine with one timer. Run is that goroutine. Add
// and Stop may be called from any goroutine at any time, also before Run.
type Senders struct {
	interval time.Duration
	window   time.Duration // how early a heartbeat may be sent, to share a wakeup with others
	wake     chan struct{} // receives when a heartbeat is due earlier than the timer

	// publishing is held while one heartbeat is built and published, so that Stop can wait for it.
	publishing sync.Mutex

	mu  sync.Mutex
	due map[*Sender]time.Time // the latest time for the next heartbeat of each; zero: now
}

// Sender schedules one instance's heartbeats: the first at a random offset within the interval, so that the instances
// of one bridge do not all send at once, then one per interval ±10 %, and one immediately after each Kick.
type Sender struct {
	set     *Senders
	current func() heartbeat.Message
	seq     uint64 // of the last heartbeat published; guarded by the set's publishing
}

// NewSenders returns an empty set that sends heartbeats every interval (0: DefaultInterval). The interval is clamped
// to MinInterval and MaxInterval, as the receiver does.
func NewSenders(interval time.Duration) *Senders {
	if interval == 0 {
		interval = heartbeat.DefaultInterval
	}
	interval = min(max(interval, heartbeat.MinInterval), heartbeat.MaxInterval)
	return &Senders{interval: interval, window: interval / 60, wake: make(chan struct{}, 1), due: map[*Sender]time.Time{}}
}

// Add starts the heartbeats of one more instance. current returns the heartbeat to send; the set fills in its Seq, TS
// and IntervalMS. Only Run's goroutine calls current, which must not stop a Sender of the same set.
func (s *Senders) Add(current func() heartbeat.Message) *Sender {
	b := &Sender{set: s, current: current}
	s.mu.Lock()
	s.due[b] = time.Now().Add(rand.N(s.interval))
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
	if _, ok := b.set.due[b]; ok {
		b.set.due[b] = time.Time{}
	}
	b.set.mu.Unlock()
	b.set.poke()
}

// Stop ends the heartbeats. It waits while any Sender of the set is publishing, so that no heartbeat of this one
// follows its return.
func (b *Sender) Stop() {
	b.set.publishing.Lock()
	defer b.set.publishing.Unlock()
	b.set.mu.Lock()
	defer b.set.mu.Unlock()
	delete(b.set.due, b)
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
// interval are sent together, but never earlier after the previous one than the interval -10 %. After a failed
// publish the heartbeat is tried again in a second with the same sequence number. publish must not stop a Sender of
// the set.
func (s *Senders) Run(ctx context.Context, publish func(heartbeat.Message) error) error {
	timer := time.NewTimer(s.interval)
	defer timer.Stop()
	for {
		due, _ := s.schedule()
		for _, b := range due {
			if ctx.Err() != nil {
				return nil
			}
			s.publish(b, publish)
		}
		_, wait := s.schedule()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// schedule returns the Senders whose heartbeats may be sent now, and how long to wait for the others. (It looks at each of
// them, a few times a second: for a thousand that is less work than keeping them in order.)
func (s *Senders) schedule() (due []*Sender, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	wait = s.interval
	for b, at := range s.due {
		if !at.After(now.Add(s.window)) {
			due = append(due, b)
		}
		wait = min(wait, at.Sub(now))
	}
	return due, wait
}

// publish publishes a heartbeat of b, unless b was stopped. It sets the time of the next one before it calls current, so
// that a kick during the publish leads to one more heartbeat.
func (s *Senders) publish(b *Sender, publish func(heartbeat.Message) error) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	// The earliest time is one window later: a heartbeat may be sent up to a window before it is due.
	earliest := s.interval*9/10 + s.window
	if !s.setDue(b, earliest+rand.N(s.interval*11/10-earliest)) {
		return
	}
	m := b.current()
	m.Seq, m.TS, m.IntervalMS = b.seq+1, time.Now(), s.interval.Milliseconds()
	if publish(m) == nil {
		b.seq++
		return
	}
	s.mu.Lock()
	kicked := s.due[b].IsZero()
	s.mu.Unlock()
	if !kicked {
		s.setDue(b, republish+s.window)
	}
}

// setDue sets the time until the next heartbeat of b. It returns false if b was stopped.
func (s *Senders) setDue(b *Sender, wait time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.due[b]; !ok {
		return false
	}
	s.due[b] = time.Now().Add(wait)
	return true
}
