package mesh

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// settleTime is how long calls are addressed to instances after the last sign that one of them hangs: one heartbeat
// interval.
const settleTime = 15 * time.Second

// routes decide which instance gets the next call of an extension. NATS gives calls of the queue group to a hung instance
// until its connection is closed. So while the catalog shows an instance that hangs, or after a call of this Client without
// a sign of life, calls are addressed to a ready instance, the less loaded of two random ones. Otherwise NATS chooses.
// An instance that is slow is avoided, too, but not in favour of one that the catalog shows as hung.
type routes struct {
	mu       sync.Mutex
	revision uint64           // of the state that ready and hung are from
	ready    []string         // the instances that take calls, as far as the catalog shows
	hung     bool             // the catalog shows an instance that does not take calls, though it may get them
	until    time.Time        // the choice is NATS's after this time
	peers    map[string]*peer // the instances that were addressed, by name
}

// peer is what a Client has seen of an instance since it began to address instances.
type peer struct {
	inflight int
	answered bool      // it sent something
	avoid    time.Time // until then: it was silent, or absent
	absent   bool      // it was not subscribed
}

// choose returns the instance for the next call, "" if the choice is NATS's. It counts the call as in flight until done.
// fresh reports whether the catalog is up to date; it is called if that matters.
func (r *routes) choose(e Extension, fresh func() bool, now time.Time) string {
	if !slices.Contains(e.Spec.Features, wire.FeatureInstance) {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.revision != e.StateRevision {
		r.read(e)
	}
	hung := r.hung && fresh()
	if hung {
		r.until = now.Add(settleTime)
	}
	if now.After(r.until) {
		r.peers = nil // what is still in flight is not counted any more
		return ""
	}
	first := r.from(now, "")
	second := r.from(now, first)
	if second != "" && r.load(second) < r.load(first) {
		first = second
	}
	if first == "" && hung { // NATS could choose the one that hangs
		first = r.slow()
	}
	if first == "" {
		return ""
	}
	if r.peers == nil {
		r.peers = map[string]*peer{}
	}
	r.peer(first).inflight++
	return first
}

// read takes over what the catalog shows. An instance that has never been started or has ended gets no calls from NATS.
func (r *routes) read(e Extension) {
	r.revision, r.ready, r.hung = e.StateRevision, nil, false
	for _, i := range e.State.Instances {
		switch {
		case i.Instance == "":
		case i.State == heartbeat.Lost, i.Breaker != nil && i.Breaker.State == heartbeat.BreakerOpen, i.State == heartbeat.Ready && i.Reason == wire.NotAnswering:
			r.hung = true
		case i.State == heartbeat.Ready:
			r.ready = append(r.ready, i.Instance)
		}
	}
}

// from returns a random instance other than not that need not be avoided, "" if there is no such instance.
func (r *routes) from(now time.Time, not string) string {
	if len(r.ready) == 0 {
		return ""
	}
	start := rand.IntN(len(r.ready))
	for n := range r.ready {
		name := r.ready[(start+n)%len(r.ready)]
		if p := r.peers[name]; name != not && (p == nil || !now.Before(p.avoid)) {
			return name
		}
	}
	return ""
}

// slow returns a random ready instance that is only avoided because it was silent: it may be busy. It returns "" if there
// is none.
func (r *routes) slow() string {
	var names []string
	for _, name := range r.ready {
		if p := r.peers[name]; p != nil && !p.absent {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return names[rand.IntN(len(names))]
}

// load is the number of calls in flight. An instance that has not answered any of them yet may hang, and comes last.
func (r *routes) load(name string) int {
	p := r.peers[name]
	switch {
	case p == nil:
		return 0
	case p.inflight > 0 && !p.answered:
		return p.inflight + 1<<20
	}
	return p.inflight
}

func (r *routes) peer(name string) *peer {
	if r.peers[name] == nil {
		r.peers[name] = &peer{}
	}
	return r.peers[name]
}

// received notes that an instance sent something.
func (r *routes) received(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.peers[name]; p != nil {
		p.answered, p.avoid, p.absent = true, time.Time{}, false
	}
}

// done ends a call that choose returned an instance for.
func (r *routes) done(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.peers[name]; p != nil {
		p.inflight = max(0, p.inflight-1)
	}
}

// silent notes a call that got no sign of life: of the instance with this name, or of any if it is "".
func (r *routes) silent(name string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = now.Add(settleTime)
	if p := r.peers[name]; p != nil {
		p.answered, p.avoid, p.absent = false, r.until, false
	}
}

// absent notes that an instance is not subscribed at the moment.
func (r *routes) absent(name string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.peers[name]; p != nil {
		p.avoid, p.absent = now.Add(time.Second), true
	}
}
