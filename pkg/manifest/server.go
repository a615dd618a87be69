package manifest

import (
	"strings"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/internal/wire"
)

// maxServers limits the MCP servers of an extension, because each is a process or a connection.
const maxServers = 64

// streamableHTTP is the name of the transport HTTP in [mcp_servers].
const streamableHTTP = "streamable_http"

// serversTable reads a table or object of MCP servers, serverTable one of them.
type (
	serversTable struct{ *table }
	serverTable  struct{ transportTable }
)

func (t serversTable) server(name string) serverTable {
	return serverTable{transportTable{t.table.table(name)}}
}

// servers reads [mcp_servers.<name>].
func (t serversTable) servers() map[string]Transport {
	if len(t.Names()) > maxServers {
		t.Fault(t.Path, "has %d servers; want at most %d", len(t.Names()), maxServers)
		return nil
	}
	out := make(map[string]Transport, len(t.Names()))
	for _, name := range t.Names() {
		sub := t.server(name)
		t.serverName(name)
		out[name] = sub.server(sub.serverKind())
		sub.Unknown(document.Error)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (t serversTable) serverName(name string) {
	key := t.Key(name)
	if t.name(key, name, maxServerName) && wire.ReservedMember(name) {
		t.Fault(key, "%s is a word of the mesh's subjects; choose another name, such as %s", document.Show(name), document.Show(name+"-server"))
	}
}

// serverKind returns the transport of a server in [mcp_servers], given by type or derived from command or url; "" was
// reported.
func (t serverTable) serverKind() string {
	if !t.Has("type") && !t.Has("transport") {
		kind := t.guessKind()
		if kind != "" {
			t.misfits("type", kind, serverFields)
		}
		return kind
	}
	return t.kind("type", "transport", []string{string(Stdio), streamableHTTP}, serverFields)
}

// guessKind derives a server's transport from its other keys.
func (t serverTable) guessKind() string {
	if t.Loose { // some programs write keys without a value
		for key, other := range map[string]string{"command": "url", "url": "command"} {
			if s, ok := t.Raw(key).(string); ok && s == "" && t.Has(other) && t.Raw(other) != "" {
				t.Drop(key)
			}
		}
	}
	switch {
	case t.Broken():
		// reported
	case t.Has("command") && t.Has("url"):
		t.Fault(t.Path, `has both command and url; set "type" to choose one`)
	case t.Has("command"):
		return string(Stdio)
	case t.Has("url"):
		return streamableHTTP
	default:
		hint := ""
		for _, k := range t.Names() {
			if near, ok := nearest.Word(k, []string{"command", "url"}); ok {
				hint = "; did you mean " + near + " by " + document.Show(k) + "?"
			}
		}
		t.Fault(t.Path, "has neither command nor url; want one of them%s", hint)
	}
	return ""
}

// server reads one server of the given kind; "" is an invalid one that was reported already.
func (t serverTable) server(kind string) Transport {
	s := Transport{Type: TransportType(kind)}
	if kind == streamableHTTP {
		s.Type = HTTP
	}
	s.Command = t.command(s.Type == Stdio)
	t.placeholders(t.Key("command"), s.Command)
	s.Args = t.args(true)
	for i, a := range s.Args {
		t.placeholders(document.Element(t.Key("args"), i), a)
	}
	s.Env = t.env()
	s.Cwd = t.cwd()
	t.checkProgram(s.Type == Stdio, s.Command, s.Cwd)
	s.HandshakeTimeout = t.handshakeTimeout()
	s.URL = t.url(s.Type == HTTP, true)
	s.Headers = t.headers()
	return s
}

func (t serverTable) cwd() string {
	s, ok := t.Str("cwd")
	switch {
	case !ok:
	case blank(s):
		t.Fault(t.Key("cwd"), "is blank; want a directory, or no cwd for the extension's own")
	case strings.ContainsRune(s, 0):
		t.Fault(t.Key("cwd"), "contains a NUL character, which is not allowed in a path")
	}
	t.placeholders(t.Key("cwd"), s)
	return s
}

// spelling converts the names that MCP clients use for a server's transport to ours; it returns others unchanged.
func spelling(s string) string {
	switch strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s)) {
	case "stdio", "local":
		return string(Stdio)
	case "http", "streamablehttp", "streaminghttp", "httpstream", "remote":
		return streamableHTTP
	}
	return s
}
