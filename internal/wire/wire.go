package wire

import (
	"slices"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// SchemaVersion is the version of the announce and catalog documents that this package writes. It rises only
// for what an old reader would get wrong.
const SchemaVersion = 1

// Features that an instance may announce. An absent feature is one it does not have.
const (
	FeatureStream   = "stream"   // honours Ext-Stream
	FeatureCancel   = "cancel"   // listens on SP.<id>.cancel
	FeatureInstance = "instance" // answers on SP.<id>.rpc.<instance>
)

// Headers of a call, all optional (docs/protocol.md).
const (
	HeaderTimeout = "Ext-Timeout" // milliseconds left to the caller, from the request's arrival on
	HeaderCallID  = "Ext-Call-Id"
	HeaderAgent   = "Ext-Agent"
	HeaderSession = "Ext-Session"
	HeaderStream  = "Ext-Stream"
	HeaderFrame   = "Ext-Frame" // accepted | progress | keepalive | chunk | end
	HeaderSeq     = "Ext-Seq"

	HeaderTraceparent = "traceparent" // W3C Trace Context
)

// Announce is the announcement of an instance on P.registry.announce.<id>. Only ID and Version are required.
type Announce struct {
	SchemaVersion int          `json:"schema_version,omitempty"`
	ID            string       `json:"id"`
	Version       string       `json:"version"`
	SubjectPrefix string       `json:"subject_prefix,omitempty"` // absent: the mesh's prefix
	Instance      string       `json:"instance,omitempty"`
	Host          string       `json:"host,omitempty"`
	Bridge        string       `json:"bridge,omitempty"`
	Replica       int          `json:"replica,omitempty"`   // number among several replicas on Bridge, from 1
	Transport     string       `json:"transport,omitempty"` // stdio | nats | http; absent: nats
	Dialect       string       `json:"dialect,omitempty"`   // ext | mcp; absent: ext
	Features      []string     `json:"features,omitempty"`
	ManifestHash  string       `json:"manifest_hash,omitempty"`
	HandshakeHash string       `json:"handshake_hash,omitempty"` // empty until the first handshake
	Capabilities  Capabilities `json:"capabilities,omitzero"`
	About
	Context Context `json:"context,omitzero"`
	Parent  string  `json:"parent,omitempty"` // of a member, e.g. google of google.gmail
}

// About is how a manifest introduces its extension.
type About struct {
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`
	Priority    int32  `json:"priority,omitempty"` // of its hooks among those of other extensions; the lowest first
}

// Capabilities are the names that an extension's manifest declares, except those of tools and hooks: the registry reads these
// in the handshake.
type Capabilities struct {
	Channels  []string `json:"channels,omitempty"`
	Providers []string `json:"providers,omitempty"`
}

// Context has the option that calls carry {agent_id, session_id}.
type Context struct {
	Passthrough bool `json:"passthrough,omitempty"`
}

// ShutdownNotice is published on P.registry.shutdown.<id> and takes effect immediately. With the Reason "removed" the
// instance is removed from the catalog; with another it is shown as shutdown.
type ShutdownNotice struct {
	ID       string `json:"id"`
	Instance string `json:"instance,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// ReasonRemoved is the reason of an instance that will not return.
const ReasonRemoved = "removed"

// Spec is the value of the catalog key spec.<id>: what an extension offers. It changes with its version or
// its handshake.
type Spec struct {
	ID      string `json:"id"`
	Version string `json:"version"`
	About
	Transport    string   `json:"transport"`
	Dialect      string   `json:"dialect"`
	Subject      string   `json:"subject"` // of calls: SP.<id>.rpc
	Features     []string `json:"features,omitempty"`
	Context      Context  `json:"context,omitzero"`
	ManifestHash string   `json:"manifest_hash,omitempty"`
	Parent       string   `json:"parent,omitempty"`
	Tools        []Tool   `json:"tools"`
	Hooks        []string `json:"hooks,omitempty"`
	Declared
	Diagnostics []Diagnostic `json:"diagnostics,omitempty"`

	Server *Server `json:"server,omitempty"` // of an MCP server: what it declared

	// HandshakeHash is the hash of the handshake that had the tools. With it, a registry that takes over need not repeat the
	// handshake.
	HandshakeHash string `json:"handshake_hash,omitempty"`
}

// Declared are the names that a manifest declares and the mesh only shows.
type Declared struct {
	Channels  []string `json:"channels,omitempty"`
	Providers []string `json:"providers,omitempty"`
}

// Diagnostic is one finding about an extension that an operator should see.
type Diagnostic struct {
	Level   string `json:"level"` // error | warn | info
	Code    string `json:"code"`  // e.g. conflict, name_clash, schema_dropped
	Message string `json:"message"`
}

// StateDoc is the value of the catalog key state.<id>: how an extension is. It changes on transitions only.
type StateDoc struct {
	State     heartbeat.State    `json:"state"` // its best instance's
	Available bool               `json:"available"`
	Reason    string             `json:"reason,omitempty"`
	Since     time.Time          `json:"since"`
	Breaker   *heartbeat.Breaker `json:"breaker,omitempty"`
	Instances []InstanceState    `json:"instances"`
}

// InstanceState is one instance in a StateDoc.
type InstanceState struct {
	Instance string             `json:"instance"`
	Host     string             `json:"host,omitempty"`
	Bridge   string             `json:"bridge,omitempty"`
	Version  string             `json:"version,omitempty"`
	State    heartbeat.State    `json:"state"`
	Reason   string             `json:"reason,omitempty"`
	Since    time.Time          `json:"since"`
	Restarts uint64             `json:"restarts"`
	Breaker  *heartbeat.Breaker `json:"breaker,omitempty"`
}

// IsReturning reports whether an extension without a ready instance is on its way back. A drained instance hides one that
// restarts, because the state of an extension is its best instance's.
func IsReturning(s *StateDoc) bool {
	returns := func(s heartbeat.State) bool { return s == heartbeat.Restarting || s == heartbeat.Spawning }
	return returns(s.State) ||
		s.State == heartbeat.Draining && slices.ContainsFunc(s.Instances, func(i InstanceState) bool { return returns(i.State) })
}

// Host is the value of the catalog key host.<bridge>: what one bridge runs, and what it could not start.
type Host struct {
	Bridge     string        `json:"bridge"`
	Host       string        `json:"host,omitempty"`
	Version    string        `json:"version"`
	Since      time.Time     `json:"since"`
	Extensions []string      `json:"extensions"`
	Problems   []HostProblem `json:"problems,omitempty"`

	// How many of each list are left out, because the document would be too large. A list of extensions is complete or null.
	ExtensionsLeftOut int `json:"extensions_left_out,omitempty"`
	ProblemsLeftOut   int `json:"problems_left_out,omitempty"`

	// Set by the registry: ready while the bridge answers on its control subject, lost when it does not;
	// "" for one that never has. Reason and StateSince go with State.
	State      heartbeat.State `json:"state,omitempty"`
	Reason     string          `json:"reason,omitempty"`
	StateSince time.Time       `json:"state_since,omitzero"`
}

// ReasonStopped is the reason of a lost bridge that had stopped all of its instances before.
const ReasonStopped = "was stopped"

// HostProblem is a manifest that failed or an extension that is gated, and why.
type HostProblem struct {
	ID      string `json:"id,omitempty"`
	Path    string `json:"path,omitempty"`
	Kind    string `json:"kind"` // invalid | gated | unreadable
	Message string `json:"message"`
}

// Skill is the value of the catalog key skill.<dir name>.
type Skill struct {
	Dir         string       `json:"-"` // the name of its directory, which is in the key
	Name        string       `json:"name"`
	Description string       `json:"description,omitempty"`
	Body        string       `json:"body"`
	Hosts       []string     `json:"hosts"`
	Diagnostics []Diagnostic `json:"diagnostics,omitempty"`
}

// DefaultHeartbeatInterval is the cadence of beats when NodeOptions names none.
const DefaultHeartbeatInterval = 15 * time.Second

// The kinds of catalog keys that make up the catalog; a key is <kind>.<name>. The other keys
// (lease.registry, epoch.registry) are the registries' own.
const (
	KindSpec  = "spec"  // spec.<id>: a Spec
	KindState = "state" // state.<id>: a StateDoc
	KindSkill = "skill" // skill.<dir name>: a Skill
	KindHost  = "host"  // host.<bridge>: a Host
)

// The keys of the registries themselves.
const (
	KeyLease = "lease.registry" // the leader's lease; renewed every 2 s
	KeyEpoch = "epoch.registry" // the fence; an object with the stream's creation time, RFC 3339, as catalog_id
)

// NotAnswering is the reason of an instance that does not answer the registry's pings. It is ready until three of them were
// not answered, then lost.
const NotAnswering = "not answering"
