package heartbeat

import (
	"context"
	"math/rand/v2"
	"time"
)

// Beacon is the cadence of one instance's beats: the first at a random offset within the interval, so that a
// thousand slots of one bridge do not beat in step, then one an interval ±10 %, and one at once after each Kick.
type Beacon struct {
	interval time.Duration
	current  func() Beat
	kick     chan struct{}
}

// NewBeacon returns a Beacon that beats every interval (0: DefaultInterval; clamped to MinInterval and
// MaxInterval, as the other side would). current returns what to say now; its Seq, TS and IntervalMS are filled
// in by the Beacon. It is called from Run's goroutine only.
func NewBeacon(interval time.Duration, current func() Beat) *Beacon {
	if interval == 0 {
		interval = DefaultInterval
	}
	interval = min(max(interval, MinInterval), MaxInterval)
	return &Beacon{interval: interval, current: current, kick: make(chan struct{}, 1)}
}

// Kick asks for a beat now, because what current returns has changed. It never blocks, may be called from
// anywhere and before Run, and several kicks before the next beat are one.
func (b *Beacon) Kick() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// republish is how soon a beat that could not be published is tried again.
const republish = time.Second

// Run publishes beats until ctx is done, and returns nil then. A beat whose publish fails has not been sent: its
// number is used again, and it is tried again after a second.
func (b *Beacon) Run(ctx context.Context, publish func(Beat) error) error {
	timer := time.NewTimer(rand.N(b.interval))
	defer timer.Stop()
	for seq := uint64(1); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-b.kick:
		case <-timer.C:
		}
		beat := b.current()
		beat.Seq, beat.TS, beat.IntervalMS = seq, time.Now(), b.interval.Milliseconds()
		wait := republish
		if publish(beat) == nil {
			seq++
			wait = b.interval*9/10 + rand.N(b.interval/5)
		}
		timer.Reset(wait)
	}
}
