package heartbeat

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// The interval between two heartbeats of an instance. Intervals that are received are clamped to MinInterval and
// MaxInterval. An instance without a heartbeat for DefaultGrace intervals is lost, unless the registry is configured
// differently.
const (
	MinInterval     = time.Second
	MaxInterval     = 5 * time.Minute
	DefaultInterval = 15 * time.Second
	DefaultGrace    = 3
)

// State is what an instance, or an extension as a whole, is doing.
type State string

// The states of an instance. The owner of the instance (a bridge or a native service) reports all of them but Lost;
// the registry sets Lost when heartbeats stop.
const (
	Spawning   State = "spawning"   // the process was started, the handshake is not done yet
	Ready      State = "ready"      // accepts calls
	Restarting State = "restarting" // between two runs: backing off or spawning again
	Failed     State = "failed"     // out of restarts, or refused permanently
	Gated      State = "gated"      // declared requirements are missing; never spawned
	Draining   State = "draining"   // finishes calls in flight, accepts no new ones
	Shutdown   State = "shutdown"   // sent its shutdown notice
	Lost       State = "lost"       // no heartbeat for longer than its grace period
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

// BreakerState is the state of a circuit breaker as sent in heartbeats.
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

// Message is one heartbeat of one instance, published on <prefix>.registry.heartbeat.<id>. Only ID is required:
// {"id":"weather"} is a valid heartbeat of a third-party service.
type Message struct {
	ID         string    `json:"id"`
	Version    string    `json:"version,omitempty"`
	Instance   string    `json:"instance,omitempty"`
	Seq        uint64    `json:"seq,omitempty"`         // increases by one per heartbeat; a gap means lost messages
	TS         time.Time `json:"ts,omitzero"`           // the sender's clock: for people, no decision uses it
	IntervalMS int64     `json:"interval_ms,omitempty"` // the sender's interval, in milliseconds
	UptimeSecs int64     `json:"uptime_secs,omitempty"`
	State      State     `json:"state,omitempty"` // absent: ready
	Reason     string    `json:"reason,omitempty"`
	Breaker    *Breaker  `json:"breaker,omitempty"`
	Inflight   int64     `json:"inflight,omitempty"`
	Calls      uint64    `json:"calls,omitempty"`
	Errors     uint64    `json:"errors,omitempty"`
	Restarts   uint64    `json:"restarts,omitempty"`

	// Announced is the digest of the announcement that this instance last published (mesh.AnnounceDigest, 16 hex
	// digits). A registry that has a different announcement requests a new one. "" means that the instance does not
	// report it.
	Announced string `json:"announced,omitempty"`
}

// MaxSize is the size of the largest heartbeat, in bytes, that Parse accepts.
const MaxSize = 16 << 10

// instanceSyntax keeps an instance name usable as a token of a subject. The length is checked separately: a bound in
// the expression would be unrolled at every program start.
var instanceSyntax = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

const maxInstance = 64

// CheckInstance checks an instance name: 1 to 64 of [A-Za-z0-9_-], or "" for a service without instance names.
func CheckInstance(s string) error {
	if s != "" && (len(s) > maxInstance || !instanceSyntax.MatchString(s)) {
		return fmt.Errorf("instance %.80q: want at most %d of [A-Za-z0-9_-]", s, maxInstance)
	}
	return nil
}

// Parse decodes a heartbeat. Unknown members are ignored, and a time stamp that is not a time in RFC 3339. It returns an
// error for a body over MaxSize, a missing id, an unknown state or breaker state, an instance that CheckInstance refuses, and
// a version or an Announced over 64 bytes.
func Parse(data []byte) (Message, error) {
	var b Message
	if len(data) > MaxSize {
		return b, fmt.Errorf("heartbeat of %d bytes is over the limit of %d", len(data), MaxSize)
	}
	in := struct {
		*Message
		TS json.RawMessage `json:"ts"`
	}{Message: &b}
	if err := json.Unmarshal(data, &in); err != nil {
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
			err = fmt.Errorf("%s has the wrong type: %s", strings.TrimPrefix(e.Field, "Message."), e.Value)
		}
		return b, fmt.Errorf("heartbeat cannot be decoded: %w", err)
	}
	_ = b.TS.UnmarshalJSON(in.TS) // zero after an error
	if b.ID == "" {
		return b, errors.New(`heartbeat has no "id"`)
	}
	if b.State == "" {
		b.State = Ready
	}
	if !b.State.Valid() {
		return b, fmt.Errorf("heartbeat of %s has the unknown state %q", b.ID, b.State)
	}
	if err := CheckInstance(b.Instance); err != nil {
		return b, fmt.Errorf("heartbeat of %s: %w", b.ID, err)
	}
	if len(b.Version) > 64 {
		return b, fmt.Errorf("heartbeat of %s has a version of %d bytes, want at most 64", b.ID, len(b.Version))
	}
	if len(b.Announced) > 64 {
		return b, fmt.Errorf("heartbeat of %s has an announcement digest of %d bytes, want at most 64", b.ID, len(b.Announced))
	}
	if b.Breaker != nil && !b.Breaker.State.Valid() {
		return b, fmt.Errorf("heartbeat of %s has the unknown breaker state %q", b.ID, b.Breaker.State)
	}
	return b, nil
}
