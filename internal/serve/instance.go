package serve

import (
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Instance is one instance of an extension. It keeps its identity while its processes come and go; each process that can
// handle calls is one call of Serve.
type Instance struct {
	pub          *Publisher
	id, instance string
	born         time.Time
	machine      *instance.Machine // the only writer of the instance's state

	mu       sync.Mutex
	announce wire.Announce
	changed  func()

	inflight atomic.Int64
	calls    atomic.Uint64
	errors   atomic.Uint64
	counters counters
	log      *calls.Extension // nil: calls are not kept
}

// Log makes the instance keep its calls in l. It is called before Serve.
func (s *Instance) Log(l *calls.Extension) { s.log = l }

// ID returns the extension's id.
func (s *Instance) ID() string { return s.id }

// Instance returns the instance's name; it survives restarts.
func (s *Instance) Instance() string { return s.instance }

// Apply applies an event to the instance's state machine.
func (s *Instance) Apply(e instance.Event) (accepted bool) { return s.machine.Apply(e) }

// Status returns the status of the instance's state machine.
func (s *Instance) Status() instance.Status { return s.machine.Status() }

// State returns the state that the instance reports, and its reason.
func (s *Instance) State() (heartbeat.State, string) { return s.machine.Status().State() }

// OnChange has f called after each change of the instance's state or announcement. It is called before Serve.
func (s *Instance) OnChange(f func()) {
	s.mu.Lock()
	s.changed = f
	s.mu.Unlock()
}

func (s *Instance) notify() {
	s.mu.Lock()
	f := s.changed
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

// Update changes the instance's announcement, for example the hash of its handshake. The id and the instance stay.
func (s *Instance) Update(change func(*wire.Announce)) {
	s.mu.Lock()
	a := s.announce
	change(&a)
	a.ID, a.Instance, a.SchemaVersion = s.id, s.instance, wire.SchemaVersion
	same := reflect.DeepEqual(a, s.announce)
	s.announce = a
	s.mu.Unlock()
	if !same {
		s.notify()
	}
}

// Announced returns the instance's announcement.
func (s *Instance) Announced() wire.Announce {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.announce
}
