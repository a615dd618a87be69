package calls

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The limits of a Log. A record takes less than a kilobyte, so that all of them take at most 12 MB, in practice 3 MB.
const (
	maxTools    = 200    // tools with counts of their own; calls of further ones are counted as OtherTools
	maxFailures = 1000   // of one extension
	allFailures = 10_000 // shared equally by the extensions
	maxSlow     = 50     // the slowest calls of an extension in one hour
	allSlow     = 1000   // shared equally by the extensions, for each of two hours
	slowPeriod  = time.Hour
)

// OtherTools is the tool under which calls are counted that are not calls of tools, and those of tools over the limit.
const OtherTools = "_other"

// Log has the calls of all extensions of a bridge. It is safe for concurrent use.
type Log struct {
	series atomic.Int64           // tools with counts of their own
	taps   atomic.Pointer[[]*Tap] // replaced, never changed; nil: none

	mu   sync.Mutex
	exts map[string]*Extension
}

// NewLog returns an empty Log.
func NewLog() *Log { return &Log{exts: map[string]*Extension{}} }

// Extension returns the part of the Log that is about one extension.
func (l *Log) Extension(id string) *Extension {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.exts[id]
	if e == nil {
		e = &Extension{log: l, id: id}
		e.tools.Store(&map[string]*tool{})
		l.exts[id] = e
		l.share()
	}
	return e
}

// Keep removes all extensions that are not in ids.
func (l *Log) Keep(ids []string) {
	keep := map[string]bool{}
	for _, id := range ids {
		keep[id] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, e := range l.exts {
		if !keep[id] {
			delete(l.exts, id)
			e.keepTools(nil, true)
		}
	}
	l.share()
}

// share sets how much each extension may keep. The caller holds mu.
func (l *Log) share() {
	n := max(1, len(l.exts))
	failures, slow := max(1, min(maxFailures, allFailures/n)), max(1, min(maxSlow, allSlow/n))
	for _, e := range l.exts {
		e.limit(failures, slow)
	}
}

// all returns the extensions, or the one with an id, sorted by id.
func (l *Log) all(id string) []*Extension {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*Extension
	for _, e := range l.exts {
		if id == "" || id == e.id || strings.HasPrefix(e.id, id+".") { // a member belongs to its parent
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *Extension) int { return strings.Compare(a.id, b.id) })
	return out
}

// Extension is the part of a Log that is about one extension.
type Extension struct {
	log   *Log
	id    string
	other tool
	tools atomic.Pointer[map[string]*tool] // replaced, never changed

	slowest atomic.Int64 // nanoseconds; until the time below, only a call that takes longer is kept as a slow one
	until   atomic.Int64 // unix nanoseconds

	mu           sync.Mutex
	failures     []Record // a ring: the oldest is at first, once there are maxFailures
	first        int
	slow, before []Record // of this period and of the one before, in no order
	maxFailures  int
	maxSlow      int
	removed      bool // further tools get no counts
}

// tool is what is counted of a tool.
type tool struct {
	name       string
	took       Histogram
	refused    atomic.Uint64 // on arrival
	failed     atomic.Uint64
	toolFailed atomic.Uint64 // of these, results with isError
}

// Ended counts a call, and keeps it if it failed, is one of the slowest.
func (e *Extension) Ended(c *End) {
	t, failed := e.tool(c.Tool), c.failed()
	if c.Refused {
		if known := (*e.tools.Load())[strings.TrimPrefix(c.Method, "tools/")]; known != nil { // its name has not been checked
			t = known
		}
		t.refused.Add(1)
	} else {
		t.took.Add(c.Took)
	}
	if failed {
		e.addFailure(c)
		t.failed.Add(1)
		if c.ToolFailed {
			t.toolFailed.Add(1)
		}
	}
	if taps := e.log.taps.Load(); taps != nil {
		e.offer(*taps, c)
	}
	if int64(c.Took) > e.slowest.Load() || c.At.UnixNano() > e.until.Load() {
		e.addSlow(c)
	}
}

// tool returns the counts of a tool.
func (e *Extension) tool(name string) *tool {
	if name == "" {
		return &e.other
	}
	if t := (*e.tools.Load())[name]; t != nil {
		return t
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := *e.tools.Load()
	if t := now[name]; t != nil {
		return t
	}
	if e.removed || e.log.series.Load() >= maxTools { // a few more if several extensions get here at the same time
		return &e.other
	}
	e.log.series.Add(1)
	next := make(map[string]*tool, len(now)+1)
	for k, v := range now {
		next[k] = v
	}
	t := &tool{name: strings.Clone(name)}
	next[t.name] = t
	e.tools.Store(&next)
	return t
}

// KeepTools frees the places of tools that the extension does not list any more, if all places are in use.
func (e *Extension) KeepTools(names map[string]bool) {
	if e.log.series.Load() >= maxTools {
		e.keepTools(names, false)
	}
}

// keepTools removes the counts of all tools that are not in names.
func (e *Extension) keepTools(names map[string]bool, removed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.removed = e.removed || removed
	now, next := *e.tools.Load(), map[string]*tool{}
	for name, t := range now {
		if names[name] {
			next[name] = t
		}
	}
	e.log.series.Add(int64(len(next) - len(now)))
	e.tools.Store(&next)
}

func (e *Extension) limit(failures, slow int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.maxFailures != failures {
		kept := e.inOrder()
		e.failures, e.first, e.maxFailures = slices.Clone(kept[max(0, len(kept)-failures):]), 0, failures
	}
	e.slow, e.before = slowestOf(e.slow, slow), slowestOf(e.before, slow)
	e.maxSlow = slow
	e.slowest.Store(0)
}

// slowestOf returns the n slowest of records, which are in no order.
func slowestOf(records []Record, n int) []Record {
	if len(records) <= n {
		return records
	}
	slices.SortFunc(records, func(a, b Record) int { return cmp.Compare(b.TookUS, a.TookUS) })
	return slices.Clone(records[:n])
}

// inOrder returns the failures, oldest first.
func (e *Extension) inOrder() []Record {
	return append(slices.Clone(e.failures[e.first:]), e.failures[:e.first]...)
}

func (e *Extension) addFailure(c *End) {
	r := c.record(e.id)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.failures) < e.maxFailures {
		e.failures = append(e.failures, r)
		return
	}
	e.failures[e.first] = r
	e.first = (e.first + 1) % len(e.failures)
}

// addSlow keeps c if it is one of the slowest calls of this period.
func (e *Extension) addSlow(c *End) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at := c.At.UnixNano(); at > e.until.Load() {
		e.before, e.slow = e.slow, nil
		e.until.Store(at + int64(slowPeriod))
		e.slowest.Store(0)
	}
	if c.Refused {
		return
	}
	if len(e.slow) < e.maxSlow {
		e.slow = append(e.slow, c.record(e.id))
	} else if at := e.fastest(); c.Took.Microseconds() > e.slow[at].TookUS {
		e.slow[at] = c.record(e.id)
	}
	if len(e.slow) >= e.maxSlow {
		e.slowest.Store((e.slow[e.fastest()].TookUS + 1) * int64(time.Microsecond))
	}
}

// fastest returns the index of the fastest of the slow calls.
func (e *Extension) fastest() (at int) {
	for i := range e.slow {
		if e.slow[i].TookUS < e.slow[at].TookUS {
			at = i
		}
	}
	return at
}
