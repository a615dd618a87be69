package config

import (
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/launch"
	"github.com/extmesh/extmesh/internal/supervise"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// LikeCallTimeout is the default HangTimeout; SupervisionFor replaces it by the CallTimeout.
const LikeCallTimeout time.Duration = -1

// Supervision configures the restarts and the limits of one extension (docs/protocol.md, "A child on stdin and stdout"). The comments
// have the default, then the bounds of the file.
type Supervision struct {
	HandshakeTimeout time.Duration // from the start to the response to initialize; 0: not set, else 10 ms to 5 min. See Config.StartLimit
	CallTimeout      time.Duration // of a call without a timeout: queueing, writing, replying; 30 s, 10 ms to 24 h, at most MaxCallTimeout
	MaxCallTimeout   time.Duration // the maximum timeout of a call; 1 h, 10 ms to 24 h
	HangTimeout      time.Duration // a silent child with an overdue call is restarted after this; LikeCallTimeout, 10 ms to 24 h, 0: never

	supervise.Policy // its defaults are those of DefaultPolicy, its bounds are in mapping.supervision

	ShutdownGrace time.Duration // from the request to stop to SIGTERM; 3 s, 10 ms to 5 min
	MaxLine       int64         // bytes of one line of the child's output; 64 MiB, which is also the most; at least 4 KiB
	MaxResult     int64         // bytes of one result; the same
	MaxInflight   int           // concurrent calls per instance; 256, 1 to 65536
	Replicas      int           // instances on this host; 1, 1 to 64
}

func defaultSupervision() Supervision {
	return Supervision{
		CallTimeout:    30 * time.Second,
		MaxCallTimeout: time.Hour,
		HangTimeout:    LikeCallTimeout,
		Policy:         supervise.DefaultPolicy(),
		ShutdownGrace:  3 * time.Second,
		MaxLine:        64 << 20,
		MaxResult:      64 << 20,
		MaxInflight:    256,
		Replicas:       1,
	}
}

// Entry has the settings of one extension or member with an entry in the file. It is complete: settings that the
// entry does not have come from its parent's entry or the general settings.
//
// There is no entries.<id>.enabled, because it could contradict extensions.disabled.
type Entry struct {
	Supervision Supervision
	Gating      Gating
	Secrets     []string // granted variables, by name, and files, as file: and an absolute path; a member's include its parent's

	// OwnHandshakeTimeout is true if the entry, or its parent's, sets handshake_timeout: the operator's value takes
	// precedence over the manifest's.
	OwnHandshakeTimeout bool
}

// entry returns the settings of id: its entry, else its parent's, else the general ones.
func (c Config) entry(id string) Entry {
	if e, ok := c.Entries[id]; ok {
		return e
	}
	if parent, _, member := strings.Cut(id, "."); member {
		if e, ok := c.Entries[parent]; ok {
			return e
		}
	}
	return Entry{Supervision: c.Supervision, Gating: c.Gating}
}

// SupervisionFor returns the settings of the extension or member id: from its entry, else its parent's, else
// c.Supervision. Its HangTimeout is never LikeCallTimeout.
func (c Config) SupervisionFor(id string) Supervision {
	s := c.entry(id).Supervision
	if s.HangTimeout == LikeCallTimeout {
		s.HangTimeout = s.CallTimeout
	}
	return s
}

// GatingFor returns the gating mode of the extension or member id.
func (c Config) GatingFor(id string) Gating { return c.entry(id).Gating }

// GrantsFor returns the variables and files that are granted to the extension or member id.
func (c Config) GrantsFor(id string) []string { return c.entry(id).Secrets }

// Defaults of StartLimit.
const (
	defaultHandshake = 30 * time.Second
	longestHandshake = manifest.MaxHandshakeTimeout
)

// StartLimit is how long a start may take, from the start of the process to the end of the handshake.
type StartLimit struct {
	Idle time.Duration // after this long, a start has failed if its processes do nothing
	Max  time.Duration // after this long, every start has failed
}

// StartLimit returns how long a start of id with the transport t may take. A handshake_timeout applies as it is: the
// operator's for id, else the manifest's, else the operator's for all. Without one, a command that may download what it
// runs has 5 minutes, and every other one 30 s, or as long as its processes work, up to 5 minutes.
func (c Config) StartLimit(id string, t manifest.Transport) StartLimit {
	e := c.entry(id)
	set := e.Supervision.HandshakeTimeout
	if t.HandshakeTimeout > 0 && !e.OwnHandshakeTimeout {
		set = min(t.HandshakeTimeout, longestHandshake)
	}
	switch {
	case set > 0:
		return StartLimit{set, set}
	case t.Type == manifest.HTTP:
		return StartLimit{defaultHandshake, defaultHandshake}
	case launch.Downloads(t.Command, t.Args) != "":
		return StartLimit{longestHandshake, longestHandshake}
	}
	return StartLimit{defaultHandshake, longestHandshake}
}

// The bounds of durations are wide enough for every use, and narrow enough to detect a wrong unit.
const (
	instant = 10 * time.Millisecond
	day     = 24 * time.Hour
)

// supervision reads the keys of extensions.supervision, or of an entry, into s.
func (m mapping) supervision(s *Supervision) {
	before := m.Faults
	m.duration("handshake_timeout", &s.HandshakeTimeout, instant, manifest.MaxHandshakeTimeout)
	m.duration("call_timeout", &s.CallTimeout, instant, day)
	m.duration("max_call_timeout", &s.MaxCallTimeout, instant, day)
	m.durationOrOff("hang_timeout", &s.HangTimeout, instant, day)
	m.integer("max_restarts", &s.MaxRestarts, 0, 1000)
	m.duration("restart_window", &s.RestartWindow, instant, day)
	m.durationOrOff("failed_retry", &s.FailedRetry, instant, day)
	m.duration("base_backoff", &s.BaseBackoff, time.Millisecond, time.Hour)
	m.duration("max_backoff", &s.MaxBackoff, time.Millisecond, time.Hour)
	m.duration("reset_after", &s.ResetAfter, instant, day)
	m.duration("shutdown_grace", &s.ShutdownGrace, instant, 5*time.Minute)
	m.size("max_line", &s.MaxLine, 4<<10, jsonrpc.DefaultMaxLine) // callers take no more
	m.size("max_result", &s.MaxResult, 4<<10, jsonrpc.DefaultMaxLine)
	m.integer("max_inflight", &s.MaxInflight, 1, 1<<16)
	m.integer("replicas", &s.Replicas, 1, 64)
	if m.Faults > before {
		return // comparing with a default would only confuse
	}
	m.ordered("call_timeout", s.CallTimeout, "max_call_timeout", s.MaxCallTimeout)
	m.ordered("base_backoff", s.BaseBackoff, "max_backoff", s.MaxBackoff)
}

// ordered reports a lesser duration that is greater than the greater one, if one of the two is set in m.
func (m mapping) ordered(lesser string, a time.Duration, greater string, b time.Duration) {
	at := lesser
	if !m.Has(lesser) {
		at = greater
	}
	if a > b && m.Has(at) {
		m.FaultKey(m.Key(at), "%s is %s and %s is %s; want it the other way round", lesser, brief(a), greater, brief(b))
	}
}
