// Package instance has the state machine of one instance of an extension. The state that the catalog shows of an
// instance is written here and nowhere else; the bridge and mesh.Serve report events.
//
// The phases of an instance's runs:
//
//	       Begin            Ready           Denied
//	new ──────────▶ spawning ────▶ ready ◀──────────▶ failed
//	 │                  │         End │ ▲    Ready     │  ▲
//	 │ Gate             │ End         ▼ │ Ready        │  │ GaveUp
//	 ▼                  └─────────▶ restarting ◀───────┘  │
//	gated                               │     End, Begin  │
//	                                    └─────────────────┘
//
// Progress changes the reason of spawning and restarting. End and GaveUp (out of restarts) end a run in any phase. The next
// Begin shows restarting with the cause of that end. After GaveUp the phase stays failed until Ready or Restart, so that a
// retry does not change it. Denied may also come before the first Ready.
//
// Two events take precedence over the phase, in this order:
//
//	Stop    draining until Leave, which shows shutdown; every other event is refused
//	Drain   draining until Restart; a run that begins meanwhile starts nothing, so Begin is refused
//
// Restart ends a drain and shows restarting at once, because the old run may need long to end. Ready and Denied are
// events of the part of a run that serves calls: they are refused before Serve and after anything that ends it.
package instance

import (
	"fmt"
	"sync"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Kind is the kind of an Event.
type Kind int

// The kinds of events.
const (
	Gate     Kind = iota // requirements are missing; no run will begin
	Begin                // a run begins
	Progress             // Reason is what the run is waiting for before it serves
	Serve                // the run subscribes to calls
	Ready                // calls arrive
	Denied               // NATS does not permit the subscription
	Note                 // Reason is shown while the instance is ready
	End                  // the run ended, or takes no calls any more
	GaveUp               // the run ended, after too many restarts
	Drain                // an operator requested a drain
	Restart              // an operator requested a restart
	Stop                 // the owner is stopping the instance
	Leave                // nothing of the instance is running any more
)

var kindNames = [...]string{"Gate", "Begin", "Progress", "Serve", "Ready", "Denied", "Note", "End", "GaveUp", "Drain", "Restart", "Stop", "Leave"}

func (k Kind) String() string { return kindNames[k] }

// Event is something that happened to an instance. Reason is the cause, if the kind has one.
type Event struct {
	Kind     Kind
	Reason   string
	Restarts int // GaveUp: how many restarts failed

	Permanent bool // GaveUp: restarts would be of no use, so there were none
}

// Reasons that are shown for requests of an operator and of the owner.
const (
	ReasonDrain   = "drain requested"
	ReasonRestart = "restart requested"
	ReasonStop    = "stopping"
)

// Status is the state of an instance and what the next state depends on. The zero Status is that of a new instance.
type Status struct {
	phase    heartbeat.State // of its runs; "": no run has begun
	reason   string          // of phase
	cause    string          // why the last run ended
	runs     uint64          // that have begun
	serving  bool            // Ready and Denied are accepted
	drained  bool
	stopping bool
	left     bool
}

// State returns the state to report, and its reason.
func (s Status) State() (state heartbeat.State, reason string) {
	switch {
	case s.left:
		return heartbeat.Shutdown, ""
	case s.stopping:
		return heartbeat.Draining, ReasonStop
	case s.drained:
		return heartbeat.Draining, ReasonDrain
	case s.phase == "":
		return heartbeat.Spawning, ""
	}
	return s.phase, s.reason
}

// Restarts returns the number of runs after the first.
func (s Status) Restarts() uint64 { return max(s.runs, 1) - 1 }

// Drained reports whether an operator has requested a drain that no restart has ended.
func (s Status) Drained() bool { return s.drained }

// shown is what others see of a status.
type shown struct {
	state    heartbeat.State
	reason   string
	restarts uint64
}

func (s Status) shown() shown {
	state, reason := s.State()
	return shown{state, reason, s.Restarts()}
}

// Next returns the status after e, or false if s does not accept e.
func (s Status) Next(e Event) (Status, bool) {
	if e.Kind == Leave {
		s.left, s.stopping, s.serving = true, true, false
		return s, true
	}
	if s.stopping || s.phase == heartbeat.Gated && e.Kind != Stop {
		return s, false
	}
	switch e.Kind {
	case Gate:
		s.enter(heartbeat.Gated, e.Reason)
	case Begin:
		return s.begin()
	case Progress:
		return s.progress(e.Reason)
	case Serve:
		if s.drained {
			return s, false
		}
		s.serving = true
	case Ready, Denied:
		if !s.serving {
			return s, false
		}
		s.phase, s.reason = heartbeat.Ready, ""
		if e.Kind == Denied {
			s.phase, s.reason = heartbeat.Failed, e.Reason
		}
	case Note:
		if s.phase != heartbeat.Ready {
			return s, false
		}
		s.reason = e.Reason
	case End:
		s.enter(heartbeat.Restarting, e.Reason)
		s.cause = e.Reason
	case GaveUp:
		reason := e.Reason
		if !e.Permanent {
			reason = fmt.Sprintf("gave up after %d restarts: %s", e.Restarts, e.Reason)
		}
		s.enter(heartbeat.Failed, reason)
		s.cause = e.Reason
	case Drain:
		s.drained, s.serving = true, false
	case Restart:
		s.drained = false
		s.enter(heartbeat.Restarting, ReasonRestart)
		s.cause = ReasonRestart
	case Stop:
		s.stopping, s.serving = true, false
	}
	return s, true
}

// begin is the first run, or one more.
func (s Status) begin() (Status, bool) {
	if s.drained {
		return s, false
	}
	s.runs++
	s.serving = false
	switch {
	case s.runs == 1:
		s.enter(heartbeat.Spawning, "")
	case s.phase != heartbeat.Failed:
		s.enter(heartbeat.Restarting, s.cause)
	}
	return s, true
}

// progress shows what a run that has begun is waiting for, and why the one before it ended.
func (s Status) progress(text string) (Status, bool) {
	if s.serving || s.phase != heartbeat.Spawning && s.phase != heartbeat.Restarting {
		return s, false
	}
	if s.reason = text; s.cause != "" && s.cause != ReasonRestart {
		s.reason += "; before that: " + s.cause
	}
	return s, true
}

// enter sets a phase in which no calls are served.
func (s *Status) enter(phase heartbeat.State, reason string) {
	s.phase, s.reason, s.serving = phase, reason, false
}

// Machine applies the events of one instance in order. It is the only writer of its status.
type Machine struct {
	changed func()

	mu     sync.Mutex
	status Status
}

// New returns the machine of a new instance. It calls changed after each event that changed the state, the reason or
// the restarts, from the goroutine that called Apply.
func New(changed func()) *Machine { return &Machine{changed: changed} }

// Apply applies e, and reports whether it was accepted.
func (m *Machine) Apply(e Event) (accepted bool) {
	m.mu.Lock()
	before := m.status
	m.status, accepted = before.Next(e)
	changed := m.status.shown() != before.shown()
	m.mu.Unlock()
	if changed {
		m.changed()
	}
	return accepted
}

// Status returns the present status.
func (m *Machine) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}
