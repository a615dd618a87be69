package registry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// BreakerReporter is a caller that reported the state of its breaker.
type BreakerReporter struct {
	Reporter string    `json:"reporter"`
	State    string    `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	At       time.Time `json:"at"`
}

// BreakerStatus is an extension with a breaker that a caller has reported as not closed.
type BreakerStatus struct {
	ID        string            `json:"id"`
	State     string            `json:"state"`              // the fleet's: opened by a failed probe of the registry, else closed
	RetryAt   *time.Time        `json:"retry_at,omitempty"` // if open
	Reporters []BreakerReporter `json:"reporters"`          // of the last ten minutes, latest last
}

// breakers lists them by id, at most maxShownBreakers.
func (l *loop) breakers(now time.Time) []BreakerStatus {
	out := []BreakerStatus{}
	for id := range l.reportedBreakers {
		x := l.exts[id]
		if x == nil {
			delete(l.reportedBreakers, id)
			continue
		}
		b := BreakerStatus{ID: id, State: string(heartbeat.BreakerClosed), Reporters: []BreakerReporter{}}
		for _, r := range x.breaker.reporters {
			if now.Sub(r.At) <= reporterAge {
				b.Reporters = append(b.Reporters, r)
			}
		}
		if at := x.breaker.retryAt; !at.IsZero() {
			b.State, b.RetryAt = string(heartbeat.BreakerOpen), &at
		}
		if len(b.Reporters) > 0 || b.RetryAt != nil {
			out = append(out, b)
		} else {
			delete(l.reportedBreakers, id)
		}
	}
	slices.SortFunc(out, func(a, b BreakerStatus) int { return cmp.Compare(a.ID, b.ID) })
	return out[:min(len(out), maxShownBreakers)]
}

// breaker is the fleet-wide breaker of an extension. Only a failed probe of the registry opens it; a caller's report
// causes the probe. It stays open until retryAt; then clients try on their own, with or without a registry.
type breaker struct {
	reporters []BreakerReporter // latest last
	retryAt   time.Time         // zero: closed
	pause     time.Duration
}

const (
	maxReporters     = 50
	maxShownBreakers = 100
	reporterAge      = 10 * time.Minute
	breakerPause     = 10 * time.Second // doubling to breakerPauseMax
	breakerPauseMax  = 120 * time.Second
)

// breakerReport handles a caller's report.
func (l *loop) breakerReport(id string, data []byte, now time.Time) {
	var r wire.BreakerReport
	err := json.Unmarshal(data, &r)
	if err == nil && r.ID != "" && r.ID != id {
		err = fmt.Errorf("id %.80q does not match the subject's id %.80q", r.ID, id)
	}
	if err == nil && !heartbeat.BreakerState(r.State).Valid() {
		err = fmt.Errorf("unknown state %.80q", r.State)
	}
	x := l.exts[id]
	if err == nil && x == nil {
		err = fmt.Errorf("no extension %.80q has been announced", id)
	}
	if err != nil {
		l.refuse("breaker", id, err)
		return
	}
	b := &x.breaker
	name := cut(r.Reporter, 100)
	b.reporters = slices.DeleteFunc(b.reporters, func(o BreakerReporter) bool {
		return o.Reporter == name || now.Sub(o.At) > reporterAge
	})
	if r.State == string(heartbeat.BreakerClosed) {
		return
	}
	if len(b.reporters) == maxReporters {
		b.reporters = slices.Delete(b.reporters, 0, 1)
	}
	l.reportedBreakers[x.id] = true
	b.reporters = append(b.reporters, BreakerReporter{Reporter: name, State: r.State, Reason: cut(r.Reason, 200), At: now})
	if r.State == string(heartbeat.BreakerOpen) {
		l.suspected(id, "", now)
	}
}

// unanswered handles that a probe of x was not answered. It opens the fleet's breaker if a caller has reported an
// open one and no instance of x takes calls.
func (l *loop) unanswered(x *extension, now time.Time) {
	health, _ := l.mon.Extension(x.id)
	b := &x.breaker
	if health.Available || !b.reported(now) || now.Before(b.retryAt) {
		return
	}
	b.pause = min(max(2*b.pause, breakerPause), breakerPauseMax)
	b.retryAt = now.Add(b.pause)
	l.markUrgent(x.id)
}

func (b *breaker) reported(now time.Time) bool {
	return slices.ContainsFunc(b.reporters, func(r BreakerReporter) bool {
		return r.State == string(heartbeat.BreakerOpen) && now.Sub(r.At) < reporterAge
	})
}

// answered handles that an instance of x answered a probe.
func (l *loop) answered(x *extension) {
	if !x.breaker.retryAt.IsZero() {
		x.breaker.retryAt, x.breaker.pause = time.Time{}, 0
		l.markUrgent(x.id)
	}
}

// shownBreaker is the breaker in state.<id>: the fleet's, or open if the bridges have opened those of all ready
// instances.
func (x *extension) shownBreaker(health liveness.Extension) *heartbeat.Breaker {
	if at := x.breaker.retryAt; !at.IsZero() {
		at = at.UTC().Truncate(time.Millisecond)
		return &heartbeat.Breaker{State: heartbeat.BreakerOpen, RetryAt: &at}
	}
	var first *heartbeat.Breaker
	for _, i := range health.Instances {
		switch {
		case i.State != heartbeat.Ready:
		case i.Available():
			return nil
		case first == nil || compareTimes(i.Breaker.RetryAt, first.RetryAt) < 0:
			first = i.Breaker
		}
	}
	return first
}

func compareTimes(a, b *time.Time) int {
	switch {
	case a == nil || b == nil:
		return cmp.Compare(btoi(a == nil), btoi(b == nil))
	}
	return a.Compare(*b)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
