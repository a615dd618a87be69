// Package events finds what changed between two documents of the catalog, and keeps the last changes in memory.
package events

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// The kinds of events.
const (
	Instance = "instance" // an instance of an extension changed its state
	Host     = "host"     // a bridge was lost, returned or restarted
	Leader   = "leader"   // another registry leads
)

// Event is one change (docs/protocol.md, "The registry's methods"). From is empty for what is new, To for what was removed.
type Event struct {
	At       time.Time `json:"ts"` // when the registry received it
	Revision uint64    `json:"revision"`
	Kind     string    `json:"kind"`
	ID       string    `json:"id,omitempty"` // of the extension
	Instance string    `json:"instance,omitempty"`
	Bridge   string    `json:"bridge,omitempty"`
	From     string    `json:"from"` // a state; for the kind leader, the name of a registry
	To       string    `json:"to"`
	Restarts uint64    `json:"restarts,omitempty"` // of the instance since its bridge started
	Reason   string    `json:"reason,omitempty"`
}

// maxReason limits the reason of an event in bytes: an event takes less than a kilobyte.
const maxReason = 200

// between returns the events between two values of a key; nil is a value that does not exist. Values that are not documents
// have no events.
func between(key string, old, now []byte) []Event {
	kind, name, _ := strings.Cut(key, ".")
	switch kind {
	case wire.KindState:
		return betweenStates(name, old, now)
	case wire.KindHost:
		return betweenHosts(name, old, now)
	}
	return nil
}

func betweenStates(id string, old, now []byte) (out []Event) {
	var before, after wire.StateDoc
	_ = json.Unmarshal(old, &before) // without instances if it is not a document
	_ = json.Unmarshal(now, &after)
	was := map[string]wire.InstanceState{}
	for _, i := range before.Instances {
		was[i.Instance] = i
	}
	for _, i := range after.Instances {
		w := was[i.Instance]
		delete(was, i.Instance)
		e := event(id, i)
		if e.From, e.To = string(w.State), string(i.State); e.From != e.To || w.Restarts < i.Restarts {
			out = append(out, e)
		}
		if e.From, e.To = breakerState(w), breakerState(i); w.Instance != "" && e.From != e.To {
			out = append(out, e)
		}
	}
	for _, i := range before.Instances {
		if _, removed := was[i.Instance]; removed {
			e := event(id, i)
			e.From, e.Reason = string(i.State), ""
			out = append(out, e)
		}
	}
	return out
}

func event(id string, i wire.InstanceState) Event {
	return Event{Kind: Instance, ID: id, Instance: i.Instance, Bridge: i.Bridge, Restarts: i.Restarts, Reason: i.Reason}
}

func breakerState(i wire.InstanceState) string {
	if i.Breaker == nil || i.Breaker.State == heartbeat.BreakerClosed {
		return "breaker closed"
	}
	return "breaker " + string(i.Breaker.State)
}

func betweenHosts(bridge string, old, now []byte) []Event {
	var before, after wire.Host
	_ = json.Unmarshal(old, &before)
	_ = json.Unmarshal(now, &after)
	e := Event{Kind: Host, Bridge: bridge, From: string(before.State), To: string(after.State), Reason: after.Reason}
	switch {
	case e.From != e.To:
		return []Event{e}
	case len(old) > 0 && len(now) > 0 && !before.Since.Equal(after.Since):
		e.Reason = "the bridge has restarted"
		return []Event{e}
	}
	return nil
}

// leaderOf is the name of the registry in a lease; "" if there is none.
func leaderOf(lease []byte) (name, instance string) {
	var h struct{ Name, Instance string }
	_ = json.Unmarshal(lease, &h)
	return h.Name, h.Instance
}

// maxEvents limits what a Log keeps.
const maxEvents = 10_000

// Log keeps the last changes of the catalog. It is not safe for concurrent use.
type Log struct {
	since        time.Time
	ring         []Event // the oldest is at first, once it is full
	first        int
	leader, lead string // the last one known: its name and its instance
	revision     uint64 // of the last change
}

// Start begins to record at a time. The lease names the registry that leads.
func (l *Log) Start(now time.Time, lease []byte) {
	if l.since.IsZero() {
		l.since = now
		l.leader, l.lead = leaderOf(lease)
	}
}

// Changed records what a change of a key means. Before Start nothing is recorded.
func (l *Log) Changed(key string, old, now []byte, revision uint64, at time.Time) {
	if revision < l.revision { // of a new bucket: the earlier events come before all of its own
		for i := range l.ring {
			l.ring[i].Revision = 1
		}
	}
	l.revision = revision
	if l.since.IsZero() {
		return
	}
	found := between(key, old, now)
	if key == wire.KeyLease {
		if name, instance := leaderOf(now); instance != "" && instance != l.lead {
			found = append(found, Event{Kind: Leader, From: l.leader, To: name})
			l.leader, l.lead = name, instance
		}
	}
	for _, e := range found {
		e.At, e.Revision, e.Reason = at.UTC(), revision, words.Clip(e.Reason, maxReason)
		l.add(e)
	}
}

func (l *Log) add(e Event) {
	if len(l.ring) < maxEvents {
		l.ring = append(l.ring, e)
		return
	}
	l.ring[l.first] = e
	l.first = (l.first + 1) % len(l.ring)
}

// Query selects events; its zero value selects all. It is the params of events on P.registry.rpc.
type Query struct {
	ID     string    `json:"id,omitempty"` // of an extension, or a parent's
	Bridge string    `json:"bridge,omitempty"`
	Kind   string    `json:"kind,omitempty"`
	Since  time.Time `json:"since,omitzero"`  // received at or after this time
	After  uint64    `json:"after,omitempty"` // of a later revision
	Limit  int       `json:"limit,omitempty"` // at most so many; default and most 1000
}

// Answer has the selected events, oldest first.
type Answer struct {
	CatalogID string    `json:"catalog_id"`
	Revision  uint64    `json:"revision"` // up to which changes are included
	Registry  string    `json:"registry"` // the name of the replica that answers
	Since     time.Time `json:"since"`    // since when it records; the zero time: not yet
	Events    []Event   `json:"events"`
	More      bool      `json:"more,omitempty"` // there are older ones, which do not fit into the answer
}

const maxAnswer = 1000

func (q *Query) matches(e *Event) bool {
	return (q.ID == "" || q.ID == e.ID || strings.HasPrefix(e.ID, q.ID+".")) && (q.Bridge == "" || q.Bridge == e.Bridge) &&
		(q.Kind == "" || q.Kind == e.Kind) && !e.At.Before(q.Since) && e.Revision > q.After
}

// size is at least what an event takes in an answer, in bytes: each byte of the reason may take six.
func (e *Event) size() int {
	return 250 + len(e.ID) + len(e.Instance) + len(e.Bridge) + 6*len(e.Reason)
}

// Answer returns the last events that q selects, as many as fit into so many bytes.
func (l *Log) Answer(q Query, room int) Answer {
	a := Answer{Revision: l.revision, Since: l.since.UTC(), Events: []Event{}}
	limit := maxAnswer
	if q.Limit > 0 {
		limit = min(limit, q.Limit)
	}
	for n := range l.ring {
		e := &l.ring[(l.first+len(l.ring)-1-n)%len(l.ring)]
		if !q.matches(e) {
			continue
		}
		if room -= e.size(); len(a.Events) == limit || room < 0 {
			a.More = true
			break
		}
		a.Events = append(a.Events, *e)
	}
	slices.Reverse(a.Events)
	return a
}
