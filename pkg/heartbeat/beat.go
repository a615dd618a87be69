package heartbeat

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// State is what an instance, or an extension as a whole, is doing.
type State string

// The states of an instance. All but Lost are said by the instance's owner (a bridge or a native service);
// Lost is the registry's word for one that fell silent.
const (
	Spawning   State = "spawning"   // a life begins: process started, handshake not yet done
	Ready      State = "ready"      // takes calls
	Restarting State = "restarting" // between two lives, backing off or spawning again
	Failed     State = "failed"     // out of restarts, or refused for good
	Gated      State = "gated"      // declared requirements are missing; never spawned
	Draining   State = "draining"   // finishes what is in flight, takes nothing new
	Shutdown   State = "shutdown"   // said good-bye
	Lost       State = "lost"       // silent for longer than its grace
)

// rank orders states from best to worst: an extension's state is its best instance's.
var rank = map[State]int{
	Ready: 0, Draining: 1, Restarting: 2, Spawning: 3, Lost: 4, Failed: 5, Gated: 6, Shutdown: 7,
}

// Valid reports whether s is one of the states above.
func (s State) Valid() bool { _, ok := rank[s]; return ok }

// Better reports whether s is a better state than t: ready > draining > restarting > spawning > lost >
// failed > gated > shutdown. An unknown state is worse than any other.
func (s State) Better(t State) bool {
	a, aok := rank[s]
	b, bok := rank[t]
	switch {
	case !aok:
		return false
	case !bok:
		return true
	}
	return a < b
}

// BreakerState is the state of a circuit breaker as it stands on the wire.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed   BreakerState = "closed"
	BreakerOpen     BreakerState = "open"
	BreakerHalfOpen BreakerState = "half-open"
)

// Valid reports whether s is one of the states above.
func (s BreakerState) Valid() bool {
	return s == BreakerClosed || s == BreakerOpen || s == BreakerHalfOpen
}

// Breaker is the state of an instance's breaker; RetryAt (RFC 3339) is set while it is open.
type Breaker struct {
	State   BreakerState `json:"state"`
	RetryAt *time.Time   `json:"retry_at,omitempty"`
}

// Beat is one sign of life of one instance, published on <prefix>.registry.heartbeat.<id>. Only ID is
// required: a foreign service may beat with {"id":"weather"} alone.
type Beat struct {
	ID         string    `json:"id"`
	Version    string    `json:"version,omitempty"`
	Instance   string    `json:"instance,omitempty"`
	Seq        uint64    `json:"seq,omitempty"`         // rises by one a beat; a gap means lost messages
	TS         time.Time `json:"ts,omitzero"`           // the sender's clock: for people, never judged by
	IntervalMS int64     `json:"interval_ms,omitempty"` // the sender's cadence, in milliseconds
	UptimeSecs int64     `json:"uptime_secs,omitempty"`
	State      State     `json:"state,omitempty"` // absent: ready
	Reason     string    `json:"reason,omitempty"`
	Breaker    *Breaker  `json:"breaker,omitempty"`
	Inflight   int64     `json:"inflight,omitempty"`
	Calls      uint64    `json:"calls,omitempty"`
	Errors     uint64    `json:"errors,omitempty"`
	Restarts   uint64    `json:"restarts,omitempty"`

	// Announced tells which announcement this instance last published: a registry that has another asks again.
	// 16 hex digits (mesh.AnnounceDigest), or "" for an instance that does not say.
	Announced string `json:"announced,omitempty"`
}

// MaxBeat is the largest beat, in bytes, that ParseBeat looks at.
const MaxBeat = 16 << 10

// instanceSyntax keeps an instance usable as a token of a subject. (A bound in it would be unrolled as programs start.)
var instanceSyntax = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

const maxInstance = 64

// CheckInstance checks the name of an instance: 1 to 64 of [A-Za-z0-9_-], or "" for a service that names none.
func CheckInstance(s string) error {
	if s != "" && (len(s) > maxInstance || !instanceSyntax.MatchString(s)) {
		return fmt.Errorf("instance %.80q: want at most %d of [A-Za-z0-9_-]", s, maxInstance)
	}
	return nil
}

// ParseBeat reads a beat from the wire. Unknown members are ignored; an unknown state is an error, and so
// is a body over MaxBeat, one without an id, an instance that CheckInstance refuses, a version or
// an Announced over 64 bytes or an unknown state of the breaker.
func ParseBeat(data []byte) (Beat, error) {
	var b Beat
	if len(data) > MaxBeat {
		return b, fmt.Errorf("beat of %d bytes is over the limit of %d", len(data), MaxBeat)
	}
	if err := json.Unmarshal(data, &b); err != nil {
		return b, fmt.Errorf("beat is not valid JSON: %w", err)
	}
	if b.ID == "" {
		return b, errors.New(`beat has no "id"`)
	}
	if b.State == "" {
		b.State = Ready
	}
	if !b.State.Valid() {
		return b, fmt.Errorf("beat of %s has the unknown state %q", b.ID, b.State)
	}
	if err := CheckInstance(b.Instance); err != nil {
		return b, fmt.Errorf("beat of %s: %w", b.ID, err)
	}
	if len(b.Version) > 64 {
		return b, fmt.Errorf("beat of %s has a version of %d bytes", b.ID, len(b.Version))
	}
	if len(b.Announced) > 64 {
		return b, fmt.Errorf("beat of %s says with %d bytes what was announced", b.ID, len(b.Announced))
	}
	if b.Breaker != nil && !b.Breaker.State.Valid() {
		return b, fmt.Errorf("beat of %s has the unknown breaker state %q", b.ID, b.Breaker.State)
	}
	return b, nil
}
