package liveness

import (
	"cmp"
	"slices"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Kind is the kind of a Change.
type Kind string

// The kinds of changes.
const (
	New       Kind = "new"       // the first heartbeat of an instance, or a declared extension
	Moved     Kind = "moved"     // an instance changed state
	WentLost  Kind = "lost"      // an instance is lost
	CameBack  Kind = "back"      // a lost instance sent a heartbeat
	Detail    Kind = "detail"    // version, reason, breaker, restarts, or a new run; same state
	Dropped   Kind = "dropped"   // the Monitor removed an instance; To is ""
	Forgotten Kind = "forgotten" // the Monitor removed an extension; Instance and To are ""
)

// Change is one event of one instance or (Forgotten, and New without an Instance) of an extension.
type Change struct {
	Kind          Kind
	ID, Instance  string
	From, To      heartbeat.State // of the instance
	WasBest, Best heartbeat.State // of the extension
	Reason        string          // as shown now
	Silence       time.Duration   // of a lost instance: the time since its last sign of life
	NewRun        bool            // the instance began a new run under the same name
}

func kindOf(from, to heartbeat.State) Kind {
	switch {
	case from == to:
		return Detail
	case to == heartbeat.Lost:
		return WentLost
	case from == heartbeat.Lost:
		return CameBack
	}
	return Moved
}

// Instance is the state that a Monitor keeps of one instance.
type Instance struct {
	Instance string // as in its heartbeats; "" for a service without instance names
	Version  string
	State    heartbeat.State
	Reason   string // of the state; Note is shown instead if set
	Note     string
	Since    time.Time // of State
	Held     bool      // shown lost although its owner sends heartbeats (Monitor.Hold)
	Breaker  *heartbeat.Breaker
	Restarts uint64

	LastHeartbeat time.Time     // zero before the first
	Interval      time.Duration // after clamping
	Uptime        time.Duration
}

// Available reports whether i accepts calls: it is ready and its breaker is not open.
func (i Instance) Available() bool {
	return i.State == heartbeat.Ready && (i.Breaker == nil || i.Breaker.State != heartbeat.BreakerOpen)
}

func (i *Instance) reason() string {
	if i.Note != "" {
		return i.Note
	}
	return i.Reason
}

// shown returns the part of i that readers of the catalog see.
func (i *Instance) shown() visible {
	v := visible{Version: i.Version, State: i.State, Reason: i.reason(), Since: i.Since, Restarts: i.Restarts}
	if i.Breaker != nil {
		v.Breaker = i.Breaker.State
		if i.Breaker.RetryAt != nil {
			v.RetryAt = *i.Breaker.RetryAt
		}
	}
	return v
}

type visible struct {
	Version, Reason string
	State           heartbeat.State
	Since, RetryAt  time.Time
	Restarts        uint64
	Breaker         heartbeat.BreakerState
}

func (v visible) equal(w visible) bool {
	same := v.Since.Equal(w.Since) && v.RetryAt.Equal(w.RetryAt)
	v.Since, v.RetryAt, w.Since, w.RetryAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return same && v == w
}

// Extension is the state that a Monitor keeps of one extension.
type Extension struct {
	ID        string
	State     heartbeat.State // the best state of its instances; lost without any
	Available bool            // whether any instance is
	Reason    string
	Since     time.Time  // of State
	Instances []Instance // sorted by name; Reason is the one to show, with Note applied
}

// Extension returns the extension id.
func (m *Monitor) Extension(id string) (Extension, bool) {
	x := m.exts[id]
	if x == nil {
		return Extension{}, false
	}
	e := Extension{ID: x.id, State: x.best, Since: x.since, Instances: make([]Instance, 0, len(x.instances))}
	for _, i := range x.instances {
		in := i.Instance
		in.Reason = i.reason()
		e.Instances = append(e.Instances, in)
		e.Available = e.Available || in.Available()
	}
	slices.SortFunc(e.Instances, func(a, b Instance) int { return cmp.Compare(a.Instance, b.Instance) })
	if len(e.Instances) == 0 {
		e.Reason = NoHeartbeat
	}
	if n := slices.IndexFunc(e.Instances, func(i Instance) bool { return i.State == x.best }); n >= 0 {
		e.Reason = e.Instances[n].Reason
	}
	return e, true
}

// Known reports whether m has the extension id.
func (m *Monitor) Known(id string) bool { return m.exts[id] != nil }

// Instance returns one instance.
func (m *Monitor) Instance(id, instance string) (Instance, bool) {
	i := m.find(id, instance)
	if i == nil {
		return Instance{}, false
	}
	return i.Instance, true
}

// Counts returns how many extensions and instances are in each state, without the states that are empty. The counts
// are maintained on every change, so that frequent calls are cheap even for a large mesh.
func (m *Monitor) Counts() (extensions, instances map[heartbeat.State]int) {
	return counted(m.best), counted(m.count)
}

func counted(all map[heartbeat.State]int) map[heartbeat.State]int {
	out := map[heartbeat.State]int{}
	for s, n := range all {
		if n > 0 {
			out[s] = n
		}
	}
	return out
}
