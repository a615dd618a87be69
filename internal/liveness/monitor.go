package liveness

import (
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Config configures a Monitor. Its zero value has the defaults of the mesh.
type Config struct {
	Interval    time.Duration // assumed for heartbeats without interval_ms; default 15 s
	Grace       float64       // an instance is lost after Grace × interval without a heartbeat; default 3
	DropAfter   time.Duration // a lost instance is dropped after this time if another is ready; default 10 min
	ForgetAfter time.Duration // an extension without a sign of life is removed after this time; default 24 h, negative: never
	MaxPause    time.Duration // a longer gap between two calls of Expire is a ListeningGap; default 2 s
	Max         int           // of extensions, and of instances in total; default 200,000
	MaxPerID    int           // of instances of one extension; default 4,096
}

// NoHeartbeat is the reason shown for an extension that was declared and has not sent a heartbeat.
const NoHeartbeat = "no heartbeat yet"

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Interval, heartbeat.DefaultInterval)
	def(&c.DropAfter, 10*time.Minute)
	def(&c.ForgetAfter, 24*time.Hour)
	def(&c.MaxPause, 2*time.Second)
	if c.Grace <= 0 {
		c.Grace = heartbeat.DefaultGrace
	}
	if c.Max <= 0 {
		c.Max = 200_000
	}
	if c.MaxPerID <= 0 {
		c.MaxPerID = 4096
	}
	return c
}

// Monitor turns heartbeats, shutdown notices and silence into changes. It has no lock: one goroutine owns it. Times
// passed to it should have a monotonic reading (time.Now's have) and come from the receiver's clock; no decision uses
// the sender's clock.
type Monitor struct {
	members
	listening time.Time // end of the last listening gap
	ticked    time.Time // the last Expire
}

type extension struct {
	id        string
	instances map[string]*instance
	count     map[heartbeat.State]int
	best      heartbeat.State
	since     time.Time // of best
	lastSign  time.Time // last heartbeat, shutdown notice or declaration
	timer     timer     // fires when the extension may be due for removal
}

type instance struct {
	Instance
	ext            *extension
	reported       heartbeat.State // the state last reported by the owner, shown again when a hold ends
	reportedReason string          // the reason last reported by the owner
	seq            uint64
	lastSign       time.Time // last heartbeat or release, or when it was adopted
	grace          time.Duration
	timer          timer // fires when the instance may be lost or, while lost, dropped
}

// NewMonitor returns an empty Monitor.
func NewMonitor(cfg Config) *Monitor {
	m := &Monitor{members: members{cfg: cfg.withDefaults(), exts: map[string]*extension{},
		best: map[heartbeat.State]int{}, count: map[heartbeat.State]int{}}}
	m.members.check, m.members.checkForget = m.checkInstance, m.checkExtension
	return m
}

// Observe processes a heartbeat that arrived at now. ok reports whether anything changed that readers of the catalog
// see, or whether the instance was restarted.
//
// A heartbeat of a lost instance brings it back unless it is held (see Hold). The heartbeat of a new instance is
// refused if there are Config.Max instances already, or Config.MaxPerID of its extension with none of
// them lost.
func (m *Monitor) Observe(b heartbeat.Message, now time.Time) (c Change, ok bool) {
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
	c.NewRun = i.follow(b)
	i.ext.lastSign, i.lastSign, i.LastHeartbeat = now, now, now
	i.Interval = m.cfg.interval(b)
	i.grace = time.Duration(float64(i.Interval) * m.cfg.Grace)
	i.Version, i.Restarts, i.Breaker = b.Version, b.Restarts, b.Breaker
	i.Uptime = time.Duration(max(0, min(b.UptimeSecs, maxUptime))) * time.Second
	i.reported, i.reportedReason = b.State, clipReason(b.Reason)
	if i.reported == "" {
		i.reported = heartbeat.Ready
	}
	if i.Held && i.reported != heartbeat.Ready {
		i.Held = false // the owner's own report is more specific, and ready after it is a new run
	}
	if !i.Held {
		if i.reported != i.State || c.NewRun {
			i.Note = ""
		}
		m.setState(i, i.reported, i.reportedReason, now)
		if c.NewRun {
			i.Since = now
		}
	}
	m.due.arm(&i.timer, i.deadline(m))
	after := i.shown()
	if c.Kind == "" {
		c.Kind = kindOf(before.State, after.State)
	}
	c = finish(c, i, before.State, wasBest)
	return c, c.Kind != Detail || c.NewRun || !before.equal(after)
}

// maxUptime keeps a hostile uptime_secs from overflowing a Duration.
const maxUptime = 1 << 32

// follow compares b with the instance's previous heartbeat. It reports whether b is of a new run.
func (i *instance) follow(b heartbeat.Message) (newRun bool) {
	last := i.seq
	i.seq = b.Seq
	if b.Seq > 0 {
		return b.Seq < last
	}
	uptime := time.Duration(max(0, b.UptimeSecs)) * time.Second
	return !i.LastHeartbeat.IsZero() && uptime < i.Uptime && b.Restarts <= i.Restarts
}

func (c Config) interval(b heartbeat.Message) time.Duration {
	if b.IntervalMS <= 0 {
		return c.Interval
	}
	ms := min(b.IntervalMS, heartbeat.MaxInterval.Milliseconds())
	return max(heartbeat.MinInterval, time.Duration(ms)*time.Millisecond)
}

// Refresh processes a sign of life of an instance in a message that does not contain its state, such as the heartbeat of
// its bridge. A lost instance returns to the state that its owner last reported, unless it is held.
func (m *Monitor) Refresh(id, instance string, now time.Time) (Change, bool) {
	m.listen(now)
	i := m.find(id, instance)
	if i == nil {
		return Change{}, false
	}
	i.ext.lastSign, i.lastSign, i.LastHeartbeat = now, now, now
	m.due.arm(&i.timer, i.deadline(m))
	if i.State != heartbeat.Lost || i.Held {
		return Change{}, false
	}
	return m.move(i, i.reported, i.reportedReason, now)
}

// Deregister processes an instance's shutdown notice, effective immediately. The instance is shown as Shutdown until
// it is dropped or sends another heartbeat.
func (m *Monitor) Deregister(id, instance, reason string, now time.Time) (Change, bool) {
	m.listen(now)
	i := m.find(id, instance)
	if i == nil {
		return Change{}, false
	}
	i.ext.lastSign, i.Held, i.Note = now, false, ""
	i.reported, i.reportedReason = heartbeat.Shutdown, clipReason(reason)
	return m.move(i, heartbeat.Shutdown, reason, now)
}

// MarkLost makes an instance lost without waiting for its grace period, because the caller has other evidence, such
// as the loss of its host. Its next heartbeat brings it back.
func (m *Monitor) MarkLost(id, instance, reason string, now time.Time) (Change, bool) {
	i := m.find(id, instance)
	if i == nil || i.State == heartbeat.Lost || i.State == heartbeat.Shutdown {
		return Change{}, false
	}
	i.Note = ""
	return m.markLost(i, reason, now)
}

// Hold marks an instance lost like MarkLost, but its owner's heartbeats do not bring it back: a bridge whose child
// hangs still sends them. Release ends the hold, and so does a heartbeat in which the owner reports a state other
// than ready. Such a report may also arrive before Hold, while the instance was being probed; then Hold does nothing.
func (m *Monitor) Hold(id, instance, reason string, now time.Time) (Change, bool) {
	i := m.find(id, instance)
	if i == nil || i.Held || i.State != heartbeat.Ready && i.State != heartbeat.Lost {
		return Change{}, false
	}
	i.Held, i.Note = true, ""
	return m.markLost(i, reason, now)
}

func (m *Monitor) markLost(i *instance, reason string, now time.Time) (Change, bool) {
	c, ok := m.move(i, heartbeat.Lost, reason, now)
	c.Silence = now.Sub(i.lastSign)
	return c, ok
}

// Release ends a hold: the instance is shown in the state that its owner last reported. The release counts as a sign
// of life.
func (m *Monitor) Release(id, instance string, now time.Time) (Change, bool) {
	i := m.find(id, instance)
	if i == nil || !i.Held {
		return Change{}, false
	}
	i.Held, i.lastSign = false, now
	return m.move(i, i.reported, i.reportedReason, now)
}

// Note shows note as the reason of an instance without a change of its state. It ends when the state changes or when
// Note is called with "".
func (m *Monitor) Note(id, instance, note string) (Change, bool) {
	i := m.find(id, instance)
	if i == nil || i.Note == note || i.Held {
		return Change{}, false
	}
	i.Note = note
	return finish(Change{Kind: Detail}, i, i.State, i.ext.best), true
}

// Declare adds an extension that has not sent a heartbeat: without instances it is shown as lost, with the reason
// NoHeartbeat. It returns false if the extension exists or the Monitor is full.
func (m *Monitor) Declare(id string, now time.Time) (Change, bool) {
	m.listen(now)
	if x := m.exts[id]; x != nil {
		x.lastSign = now
		return Change{}, false
	}
	x := m.extension(id, now)
	if x == nil {
		return Change{}, false
	}
	return Change{Kind: New, ID: id, To: heartbeat.Lost, Reason: NoHeartbeat, Best: x.best}, true
}

// Adopt adds an instance from a catalog that another registry wrote; it does nothing if the instance exists. An
// instance that is not lost there is marked lost only after a full grace period from now.
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
		rec.State = heartbeat.Lost
	}
	i.Version, i.Restarts, i.Breaker = rec.Version, rec.Restarts, rec.Breaker
	i.reported, i.reportedReason = rec.State, rec.Reason
	m.setState(i, rec.State, rec.Reason, since)
	if i.ext.best == rec.State && since.Before(i.ext.since) {
		i.ext.since = since
	}
	m.due.arm(&i.timer, i.deadline(m))
}

// Silent records that an extension from a catalog, of which no sign of life has been received, had the last one at t.
func (m *Monitor) Silent(id string, t time.Time) {
	if x := m.exts[id]; x != nil && t.Before(x.lastSign) && m.cfg.ForgetAfter > 0 {
		x.lastSign = t
		m.due.arm(&x.timer, t.Add(m.cfg.ForgetAfter))
	}
}

// Remove drops one instance. It returns false if it does not exist.
func (m *Monitor) Remove(id, instance string, now time.Time) (Change, bool) {
	i := m.find(id, instance)
	if i == nil {
		return Change{}, false
	}
	return m.drop(i, "removed", now), true
}

// Forget drops an extension with all its instances. It returns false if it does not exist.
func (m *Monitor) Forget(id string) (Change, bool) {
	x := m.exts[id]
	if x == nil {
		return Change{}, false
	}
	return m.forget(x, "removed"), true
}

// move sets the state of i for a cause other than a heartbeat, sets its timer, and returns the change.
func (m *Monitor) move(i *instance, to heartbeat.State, reason string, now time.Time) (Change, bool) {
	before, wasBest := i.shown(), i.ext.best
	m.setState(i, to, reason, now)
	m.due.arm(&i.timer, i.deadline(m))
	return finish(Change{Kind: kindOf(before.State, to)}, i, before.State, wasBest), !before.equal(i.shown())
}

// finish fills in the fields that all changes of an instance have.
func finish(c Change, i *instance, from, wasBest heartbeat.State) Change {
	c.ID, c.Instance, c.From, c.To = i.ext.id, i.Instance.Instance, from, i.State
	c.Reason, c.WasBest, c.Best = i.reason(), wasBest, i.ext.best
	return c
}
