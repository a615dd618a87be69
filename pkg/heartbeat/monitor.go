package heartbeat

import (
	"strings"
	"time"
)

// Config is what a Monitor may be told. The zero value is the mesh's default.
type Config struct {
	Interval    time.Duration // cadence assumed of a beat without interval_ms; default 15 s
	Grace       float64       // silence of Grace × interval makes an instance lost; default 3
	DropAfter   time.Duration // a lost instance is dropped after this long if another is ready; default 10 min
	ForgetAfter time.Duration // an extension without a sign of life is forgotten; default 24 h, negative: never
	MaxPause    time.Duration // a longer gap between two calls of Expire is time not listened; default 2 s
	Max         int           // of extensions, and of instances in all; default 200,000
	MaxPerID    int           // of instances of one extension; default 4,096
}

// The bounds that an interval from the wire is clamped to, and what it is when the beat names none.
const (
	MinInterval     = time.Second
	MaxInterval     = 5 * time.Minute
	DefaultInterval = 15 * time.Second
	DefaultGrace    = 3
)

// NoBeatYet is the reason shown for an extension that was declared and has not been heard.
const NoBeatYet = "no beat yet"

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Interval, DefaultInterval)
	def(&c.DropAfter, 10*time.Minute)
	def(&c.ForgetAfter, 24*time.Hour)
	def(&c.MaxPause, 2*time.Second)
	if c.Grace <= 0 {
		c.Grace = DefaultGrace
	}
	if c.Max <= 0 {
		c.Max = 200_000
	}
	if c.MaxPerID <= 0 {
		c.MaxPerID = 4096
	}
	return c
}

// Monitor turns beats, good-byes and silence into changes. It has no lock: one goroutine owns it. Times passed
// to it should carry a monotonic reading (time.Now does) and be the receiver's own; what a beat says of the time
// is never judged by.
type Monitor struct {
	cfg       Config
	exts      map[string]*extension
	best      map[State]int // extensions, by their best state
	count     map[State]int // instances
	instances int
	due       dueHeap
	listening time.Time // nobody is condemned for silence before this
	ticked    time.Time // the last Expire
	refused   uint64
}

type extension struct {
	id        string
	instances map[string]*instance
	count     map[State]int
	best      State
	since     time.Time // of best
	sign      time.Time // last beat, good-bye or declaration
	timer     timer     // fires when it may be time to forget
}

type instance struct {
	Instance
	ext   *extension
	said  State // the owner's last word, shown again when a hold ends
	why   string
	seq   uint64
	heard time.Time // last beat, or when it was adopted
	grace time.Duration
	timer timer // fires when it may be lost or, while lost, dropped
}

// NewMonitor returns a Monitor that knows nobody.
func NewMonitor(cfg Config) *Monitor {
	return &Monitor{cfg: cfg.withDefaults(), exts: map[string]*extension{}, best: map[State]int{}, count: map[State]int{}}
}

// Observe takes a beat that arrived at now. ok reports whether anything changed that a reader of the catalog
// could see, or whether the beat tells of missed beats or of a rebirth.
//
// A beat of an instance that was lost brings it back; one of an instance on hold does not (see Hold). The beat of
// a new instance is refused, and counted, when there are Config.Max instances already, or Config.MaxPerID of its
// extension with none among them lost.
func (m *Monitor) Observe(b Beat, now time.Time) (c Change, ok bool) {
	m.listen(now)
	i := m.find(b.ID, b.Instance)
	if i == nil {
		if i = m.add(b.ID, b.Instance, now); i == nil {
			return Change{}, false
		}
		c.Kind = New
	}
	before := i.shown()
	wasBest := i.ext.best
	c.Missed, c.Reborn = i.follow(b)
	i.ext.sign, i.heard, i.LastBeat = now, now, now
	i.Interval = m.interval(b)
	i.grace = time.Duration(float64(i.Interval) * m.cfg.Grace)
	i.Version, i.Restarts, i.Breaker = b.Version, b.Restarts, b.Breaker
	i.Calls, i.Errors, i.Inflight = b.Calls, b.Errors, b.Inflight
	i.Uptime = time.Duration(max(0, min(b.UptimeSecs, maxUptime))) * time.Second
	i.said, i.why = b.State, b.Reason
	if i.said == "" {
		i.said = Ready
	}
	if i.Held && i.said != Ready {
		i.Held = false // its owner admits it: that is the better word, and ready again is a new life
	}
	if !i.Held {
		if i.said != i.State || c.Reborn {
			i.Note = ""
		}
		m.enter(i, i.said, i.why, now)
		if c.Reborn {
			i.Since = now
		}
	}
	m.arm(&i.timer, i.deadline(m))
	after := i.shown()
	if c.Kind == "" {
		c.Kind = kindOf(before.State, after.State)
	}
	c = m.finish(c, i, before.State, wasBest)
	return c, c.Kind != Detail || c.Missed > 0 || c.Reborn || !before.equal(after)
}

// maxUptime keeps a hostile uptime_secs from overflowing a Duration.
const maxUptime = 1 << 32

// follow compares b with the instance's last beat.
func (i *instance) follow(b Beat) (missed uint64, reborn bool) {
	last := i.seq
	i.seq = b.Seq
	switch {
	case b.Seq == 0:
		reborn = !i.LastBeat.IsZero() && time.Duration(max(0, b.UptimeSecs))*time.Second < i.Uptime && b.Restarts <= i.Restarts
	case last == 0:
	case b.Seq < last:
		reborn = true
	case b.Seq > last+1:
		missed = b.Seq - last - 1
	}
	if reborn {
		i.Reborn++
	}
	i.Missed += missed
	return missed, reborn
}

func (m *Monitor) interval(b Beat) time.Duration {
	if b.IntervalMS <= 0 {
		return m.cfg.Interval
	}
	ms := min(b.IntervalMS, MaxInterval.Milliseconds())
	return max(MinInterval, time.Duration(ms)*time.Millisecond)
}

// Goodbye takes an instance's own good-bye, effective at once. The instance shows as Shutdown until it is
// dropped, or until it beats again.
func (m *Monitor) Goodbye(id, instance, reason string, now time.Time) (Change, bool) {
	m.listen(now)
	i := m.find(id, instance)
	if i == nil {
		return Change{}, false
	}
	i.ext.sign, i.Held, i.Note = now, false, ""
	i.said, i.why = Shutdown, reason
	return m.move(i, Shutdown, reason, now)
}

// Condemn makes an instance lost without waiting for its grace to pass, for a reason that the caller has
// evidence of: its host is gone, say. Its next beat brings it back.
func (m *Monitor) Condemn(id, instance, reason string, now time.Time) (Change, bool) {
	i := m.find(id, instance)
	if i == nil || i.State == Lost || i.State == Shutdown {
		return Change{}, false
	}
	i.Note = ""
	return m.condemn(i, reason, now)
}

// Hold condemns like Condemn, but its owner's beats do not bring the instance back: the owner (a bridge whose
// child hangs, say) may well beat on while nobody answers. Release ends the hold, and so does a beat in which the
// owner itself says anything but ready.
func (m *Monitor) Hold(id, instance, reason string, now time.Time) (Change, bool) {
	i := m.find(id, instance)
	if i == nil || i.State == Shutdown || i.Held {
		return Change{}, false
	}
	i.Held, i.Note = true, ""
	return m.condemn(i, reason, now)
}

func (m *Monitor) condemn(i *instance, reason string, now time.Time) (Change, bool) {
	c, ok := m.move(i, Lost, reason, now)
	c.Silence = now.Sub(i.heard)
	return c, ok
}

// Release ends a hold: the instance shows its owner's last word again. The evidence for the release counts as a
// sign of life.
func (m *Monitor) Release(id, instance string, now time.Time) (Change, bool) {
	i := m.find(id, instance)
	if i == nil || !i.Held {
		return Change{}, false
	}
	i.Held, i.heard = false, now
	return m.move(i, i.said, i.why, now)
}

// Note shows note as the reason of an instance, whose state stays, until the state changes or Note is called
// with "".
func (m *Monitor) Note(id, instance, note string) (Change, bool) {
	i := m.find(id, instance)
	if i == nil || i.Note == note || i.Held {
		return Change{}, false
	}
	i.Note = note
	return m.finish(Change{Kind: Detail}, i, i.State, i.ext.best), true
}

// Declare makes an extension known that has not been heard: without instances it shows as lost, NoBeatYet. It
// reports false when the Monitor is full.
func (m *Monitor) Declare(id string, now time.Time) (Change, bool) {
	m.listen(now)
	if x := m.exts[id]; x != nil {
		x.sign = now
		return Change{}, false
	}
	x := m.extension(id, now)
	if x == nil {
		return Change{}, false
	}
	return Change{Kind: New, ID: id, To: Lost, Reason: NoBeatYet, Best: x.best}, true
}

// Adopt takes an instance over from somebody else's record (a catalog that another monitor wrote). Nothing is
// changed when the instance is known already. One that is not lost there gets a full grace of listening from
// now on before it is.
func (m *Monitor) Adopt(id string, rec Instance, now time.Time) {
	m.listen(now)
	if m.find(id, rec.Instance) != nil {
		return
	}
	i := m.add(id, rec.Instance, now)
	if i == nil {
		return
	}
	since := rec.Since
	if since.IsZero() || since.After(now) {
		since = now
	}
	if !rec.State.Valid() {
		rec.State = Lost
	}
	i.Version, i.Restarts, i.Breaker = rec.Version, rec.Restarts, rec.Breaker
	i.said, i.why = rec.State, rec.Reason
	m.enter(i, rec.State, rec.Reason, since)
	if i.ext.best == rec.State && since.Before(i.ext.since) {
		i.ext.since = since
	}
	m.arm(&i.timer, i.deadline(m))
}

// Remove drops one instance, and reports whether there was one.
func (m *Monitor) Remove(id, instance string, now time.Time) (Change, bool) {
	i := m.find(id, instance)
	if i == nil {
		return Change{}, false
	}
	return m.drop(i, "removed", now), true
}

// Forget drops an extension with all its instances, and reports whether there was one.
func (m *Monitor) Forget(id string) (Change, bool) {
	x := m.exts[id]
	if x == nil {
		return Change{}, false
	}
	return m.forget(x, "removed"), true
}

// Refused counts the beats of new instances that were turned away because there was no room.
func (m *Monitor) Refused() uint64 { return m.refused }

// move is enter with everything that belongs to it, for changes that are not beats.
func (m *Monitor) move(i *instance, to State, reason string, now time.Time) (Change, bool) {
	before, wasBest := i.shown(), i.ext.best
	m.enter(i, to, reason, now)
	m.arm(&i.timer, i.deadline(m))
	return m.finish(Change{Kind: kindOf(before.State, to)}, i, before.State, wasBest), !before.equal(i.shown())
}

// enter shows i in a state, and keeps its extension's count and best state true.
func (m *Monitor) enter(i *instance, to State, reason string, now time.Time) {
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	i.Reason = reason
	if i.State == to {
		return
	}
	if i.State != "" {
		i.ext.count[i.State]--
		m.count[i.State]--
	}
	i.State, i.Since = to, now
	i.ext.count[to]++
	m.count[to]++
	m.settle(i.ext, now)
}

const maxReason = 512

// settle recomputes the best state of x.
func (m *Monitor) settle(x *extension, now time.Time) {
	best := Lost // without instances
	if len(x.instances) > 0 {
		best = ""
		for s, n := range x.count {
			if n > 0 && s.Better(best) {
				best = s
			}
		}
	}
	if best != x.best {
		m.best[x.best]--
		m.best[best]++
		x.best, x.since = best, now
	}
}

func (m *Monitor) finish(c Change, i *instance, from, wasBest State) Change {
	c.ID, c.Instance, c.From, c.To = i.ext.id, i.Instance.Instance, from, i.State
	c.Reason, c.WasBest, c.Best = i.reason(), wasBest, i.ext.best
	return c
}
