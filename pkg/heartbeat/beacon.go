package heartbeat

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Beacons sends the beats of any number of instances, from one goroutine with one timer: a thousand slots of a
// bridge that each had their own would keep a thousand stacks for nothing. Run is the goroutine; Add and Stop may
// be called by anybody and at any time, before Run, too, with which the beats begin.
type Beacons struct {
	interval time.Duration
	window   time.Duration // how much too early a beat may go out, with others
	wake     chan struct{} // poked when something is due earlier than it was

	// beating is held while one beat is made and published: who stops a Beacon waits for that.
	beating sync.Mutex

	mu  sync.Mutex
	due schedule
}

// Beacon is the cadence of one instance's beats: the first at a random offset within the interval, so that a
// thousand slots of one bridge do not beat in step, then one an interval ±10 %, and one at once after each Kick.
type Beacon struct {
	set     *Beacons
	current func() Beat
	seq     uint64 // of the last one published; guarded by the set's beating

	// Guarded by the set's mu.
	due   time.Time // the latest time for the next beat; zero: at once
	place int       // in the schedule; -1: stopped
}

// NewBeacons returns an empty set that beats every interval (0: DefaultInterval; clamped to MinInterval and
// MaxInterval, as the other side would).
func NewBeacons(interval time.Duration) *Beacons {
	if interval == 0 {
		interval = DefaultInterval
	}
	interval = min(max(interval, MinInterval), MaxInterval)
	return &Beacons{interval: interval, window: interval / 60, wake: make(chan struct{}, 1)}
}

// Add begins the beats of one more instance. current returns what to say now; its Seq, TS and IntervalMS are filled
// in. It is called by Run's goroutine only, and must not stop a Beacon of the same set.
func (s *Beacons) Add(current func() Beat) *Beacon {
	b := &Beacon{set: s, current: current, due: time.Now().Add(rand.N(s.interval))}
	s.mu.Lock()
	heap.Push(&s.due, b)
	s.mu.Unlock()
	s.poke()
	return b
}

// Kick asks for a beat now, because what current returns has changed: it is called after the kick. Kick never
// waits for a beat, and several kicks before the next one are one. Of a nil Beacon, or one that is stopped, it does
// nothing.
func (b *Beacon) Kick() {
	if b == nil {
		return
	}
	b.set.mu.Lock()
	kicked := b.place >= 0 && !b.due.IsZero()
	if kicked {
		b.due = time.Time{}
		heap.Fix(&b.set.due, b.place)
	}
	b.set.mu.Unlock()
	if kicked {
		b.set.poke()
	}
}

// Stop ends the beats. It waits for one that is just being published, by whichever Beacon: once it has returned, none
// follows.
func (b *Beacon) Stop() {
	s := b.set
	s.beating.Lock()
	defer s.beating.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.place >= 0 {
		heap.Remove(&s.due, b.place)
	}
}

func (s *Beacons) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// republish is how soon a beat that could not be published is tried again.
const republish = time.Second

// Run publishes beats until ctx is done, and returns nil then. Those that are due within a sixtieth of the interval
// go out together, never nearer to the one before than the interval -10 %. A beat whose publish fails has not been
// sent: its number is used again, and it is tried again after a second. publish must not stop a Beacon of the set.
func (s *Beacons) Run(ctx context.Context, publish func(Beat) error) error {
	timer := time.NewTimer(s.interval)
	defer timer.Stop()
	for {
		now := time.Now()
		for ctx.Err() == nil && s.beat(now, publish) {
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

// next is when the next beat is due, false if there is nobody.
func (s *Beacons) next() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.due) == 0 {
		return time.Time{}, false
	}
	return s.due[0].due, true
}

// beat publishes one beat that may go out at now, false if there is none.
func (s *Beacons) beat(now time.Time, publish func(Beat) error) bool {
	s.beating.Lock()
	defer s.beating.Unlock()
	b := s.take(now)
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

// take returns a Beacon that may beat at now, with its next turn set: a kick from now on is for a beat after this one.
func (s *Beacons) take(now time.Time) *Beacon {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.due) == 0 || s.due[0].due.After(now.Add(s.window)) {
		return nil
	}
	b := s.due[0]
	// Its own window before that is the earliest.
	earliest := s.interval*9/10 + s.window
	b.due = time.Now().Add(earliest + rand.N(s.interval*11/10-earliest))
	heap.Fix(&s.due, b.place)
	return b
}

// retry has b's turn come soon again, unless somebody has kicked it since.
func (s *Beacons) retry(b *Beacon) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.due.IsZero() {
		b.due = time.Now().Add(republish + s.window)
		heap.Fix(&s.due, b.place)
	}
}
