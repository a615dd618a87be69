package manifest

import "time"

// FileName is the file name of a manifest.
const FileName = "plugin.toml"

// Manifest is a parsed and valid plugin.toml, or one of its members (see Members). Its json tags are the file's keys;
// a Manifest is not meant to be marshalled.
type Manifest struct {
	Plugin       Plugin               `json:"plugin"`                // Which extension this is.
	Capabilities Capabilities         `json:"capabilities,omitzero"` // What the extension offers, by name. At least one list is non-empty, unless the extension is only a container of mcp_servers.
	Transport    Transport            `json:"transport,omitzero"`    // How the extension is reached. May be absent when there are mcp_servers: the extension is then only their container.
	Requires     Requires             `json:"requires,omitzero"`     // Preconditions: an extension that misses one is gated.
	Context      Context              `json:"context,omitzero"`      // What calls carry along.
	Meta         Meta                 `json:"meta,omitzero"`         // Information for people.
	MCPServers   map[string]Transport `json:"mcp_servers,omitempty"` // MCP servers bundled with the extension, by name; each becomes the member <id>.<name>. Without any, a sidecar .mcp.json is read.

	// Hash is manifest_hash: the SHA-256 of the file's bytes in lower-case hex, 64 digits. A member's changes with what
	// it is run with, so that it stays the same when another server is added. It is empty in a manifest that was not
	// parsed.
	Hash string `json:"-"`
	// Parent is the id of the extension that a member belongs to; empty in a parsed manifest.
	Parent string `json:"-"`

	parent *Manifest // of a member: its variables are required too
}

// Container reports whether the extension runs nothing itself and only contains MCP servers: it has no [transport]
// and no capabilities.
func (m *Manifest) Container() bool { return m.Transport.Type == "" }

// Plugin identifies the extension.
type Plugin struct {
	// ID is ^[a-z][a-z0-9_-]*$, at most MaxID bytes and not reserved; a member's is <parent>.<server>.
	ID              string `json:"id"`                          // The extension's id, unique on the mesh.
	Version         string `json:"version"`                     // The extension's version: strict semver, such as 1.0.0.
	Name            string `json:"name,omitempty"`              // A name for people.
	Description     string `json:"description,omitempty"`       // What the extension does, in at most 512 characters.
	MinAgentVersion string `json:"min_agent_version,omitempty"` // The oldest agent version the extension works with: strict semver.
	Priority        int32  `json:"priority,omitempty"`          // The order of hooks among extensions.
}

// Capabilities lists what the extension offers, by name. With dialect mcp, Tools may be ["*"]: all tools of the
// server.
type Capabilities struct {
	Tools     []string `json:"tools,omitempty"`     // Tools. With dialect mcp their names follow MCP's rule, and * alone means whatever the server offers.
	Hooks     []string `json:"hooks,omitempty"`     // Hooks: before_message, after_message, before_tool_call, after_tool_call.
	Channels  []string `json:"channels,omitempty"`  // Channels.
	Providers []string `json:"providers,omitempty"` // Providers.
}

// empty reports whether all lists are empty.
func (c Capabilities) empty() bool {
	return len(c.Tools)+len(c.Hooks)+len(c.Channels)+len(c.Providers) == 0
}

// TransportType is how an extension is reached.
type TransportType string

// The transports.
const (
	Stdio TransportType = "stdio"
	NATS  TransportType = "nats"
	HTTP  TransportType = "http"
)

// Dialect is the JSON-RPC dialect of an extension.
type Dialect string

// The dialects. With Auto (the default) the response to initialize decides.
const (
	Auto Dialect = "auto"
	Ext  Dialect = "ext"
	MCP  Dialect = "mcp"
)

// Transport is how the extension, or an MCP server bundled with it, is reached. Type decides which of the other fields
// are used; Parse leaves the others zero. A bundled server has the type Stdio, or HTTP, which manifests call
// streamable_http; SubjectPrefix and Dialect are not used. Env, Headers and URL (for a bundled server also Command, Args
// and Cwd) may contain placeholders, which Manifest.Resolve replaces.
type Transport struct {
	Type    TransportType     `json:"type"`              // How the extension is reached; kind is another name for this key.
	Command string            `json:"command,omitempty"` // The program to run, looked up on $PATH or relative to the manifest's directory.
	Args    []string          `json:"args,omitempty"`    // The program's arguments.
	Env     map[string]string `json:"env,omitempty"`     // Variables added to the program's environment. Values may hold placeholders.
	Dialect Dialect           `json:"dialect,omitempty"` // The JSON-RPC dialect; auto lets the answer to initialize decide.
	// HandshakeTimeout is at most MaxHandshakeTimeout; 0 means the host's default.
	HandshakeTimeout time.Duration     `json:"handshake_timeout,omitempty"` // How long initialize may take, such as 30s, at most 5m.
	SubjectPrefix    string            `json:"subject_prefix,omitempty"`    // The service answers on <subject_prefix>.<id>.rpc. Absent: the mesh's prefix.
	URL              string            `json:"url,omitempty"`               // http(s)://host[:port][/path]. May hold placeholders.
	Headers          map[string]string `json:"headers,omitempty"`           // Headers sent with each request. Values may hold placeholders.

	// Cwd is the working directory of a bundled server; empty means the extension's root. [transport] has no such key.
	Cwd string `json:"-"`
}

// Requires lists what must be present before the extension is started.
type Requires struct {
	Bins []string `json:"bins,omitempty"` // Programs that must be on $PATH.
	Env  []string `json:"env,omitempty"`  // Variables that must be set and non-empty; they pass the secret filter.
}

// Context configures whether calls carry their context.
type Context struct {
	Passthrough bool `json:"passthrough,omitempty"` // Calls carry agent_id and session_id in _meta.
}

// Meta is information for people.
type Meta struct {
	Author  string `json:"author,omitempty"`  // Who wrote the extension.
	License string `json:"license,omitempty"` // The extension's licence, such as MIT.
}
