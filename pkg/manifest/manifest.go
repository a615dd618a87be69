package manifest

import "time"

// FileName is the manifest's file name; discovery looks for it.
const FileName = "plugin.toml"

// Manifest is a parsed and validated plugin.toml.
type Manifest struct {
	Plugin       Plugin               `toml:"plugin"`
	Capabilities Capabilities         `toml:"capabilities"`
	Transport    Transport            `toml:"transport"`
	Requires     Requires             `toml:"requires"`
	Context      Context              `toml:"context"`
	Meta         Meta                 `toml:"meta"`
	MCPServers   map[string]MCPServer `toml:"mcp_servers"`
}

// Plugin says which extension this is.
type Plugin struct {
	ID              string `toml:"id"`
	Version         string `toml:"version"`
	Name            string `toml:"name"`
	Description     string `toml:"description"`
	MinAgentVersion string `toml:"min_agent_version"`
	Priority        int32  `toml:"priority"`
}

// Capabilities lists what the extension offers, by name. Tools may be ["*"] with dialect mcp.
type Capabilities struct {
	Tools     []string `toml:"tools"`
	Hooks     []string `toml:"hooks"`
	Channels  []string `toml:"channels"`
	Providers []string `toml:"providers"`
}

// TransportType tells how an extension is reached.
type TransportType string

// The transports.
const (
	Stdio TransportType = "stdio"
	NATS  TransportType = "nats"
	HTTP  TransportType = "http"
)

// Dialect tells which JSON-RPC dialect an extension speaks.
type Dialect string

// The dialects. Auto (the default) lets the answer to initialize decide.
const (
	Auto Dialect = "auto"
	Ext  Dialect = "ext"
	MCP  Dialect = "mcp"
)

// Transport tells how the extension is reached. Type decides which of the other fields have a meaning.
type Transport struct {
	Type             TransportType     `toml:"type"`
	Command          string            `toml:"command"`           // stdio
	Args             []string          `toml:"args"`              // stdio
	Env              map[string]string `toml:"env"`               // stdio
	Dialect          Dialect           `toml:"dialect"`           // stdio, http
	HandshakeTimeout time.Duration     `toml:"handshake_timeout"` // stdio; 0 = the host's default
	SubjectPrefix    string            `toml:"subject_prefix"`    // nats
	URL              string            `toml:"url"`               // http
	Headers          map[string]string `toml:"headers"`           // http
}

// Requires are the preconditions for a spawn.
type Requires struct {
	Bins []string `toml:"bins"`
	Env  []string `toml:"env"`
}

// Context asks for call context to be passed along.
type Context struct {
	Passthrough bool `toml:"passthrough"`
}

// Meta is information for people.
type Meta struct {
	Author  string `toml:"author"`
	License string `toml:"license"`
}

// ServerType is the transport of a bundled MCP server.
type ServerType string

// The transports of a bundled MCP server.
const (
	ServerStdio          ServerType = "stdio"
	ServerStreamableHTTP ServerType = "streamable_http"
)

// MCPServer is one MCP server bundled with the extension; it becomes the member <id>.<name>.
type MCPServer struct {
	Type    ServerType        `toml:"type"`
	Command string            `toml:"command"`
	Args    []string          `toml:"args"`
	Env     map[string]string `toml:"env"`
	Cwd     string            `toml:"cwd"`
	URL     string            `toml:"url"`
	Headers map[string]string `toml:"headers"`
}

// Level is how grave a diagnostic is.
type Level string

// The levels.
const (
	Error Level = "error"
	Warn  Level = "warn"
	Info  Level = "info"
)

// Diagnostic is one finding about one place in a file: what is wrong and what would be right.
type Diagnostic struct {
	Level   Level  `json:"level"`
	Path    string `json:"path"`
	Line    int    `json:"line,omitempty"`   // 1-based; 0 = the file as a whole
	Column  int    `json:"column,omitempty"` // 1-based, in bytes
	Key     string `json:"key,omitempty"`    // dotted, e.g. plugin.id
	Message string `json:"message"`
}
