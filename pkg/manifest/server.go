package manifest

import (
	"maps"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/nearest"
)

// maxServers limits the MCP servers of an extension, because each is a process or a connection.
const maxServers = 64

// servers reads [mcp_servers.<name>].
func (t *table) servers() map[string]MCPServer {
	t = t.table("mcp_servers")
	if len(t.m) > maxServers {
		t.fault(t.path, "has %d servers; want at most %d", len(t.m), maxServers)
		return nil
	}
	out := make(map[string]MCPServer, len(t.m))
	for _, name := range slices.Sorted(maps.Keys(t.m)) {
		sub := t.table(name)
		t.serverName(name)
		out[name] = sub.server(sub.serverKind())
		sub.unknown(Error)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (t *table) serverName(name string) {
	key := t.key(name)
	if t.name(key, name, maxServerName) && reservedMember(name) {
		t.fault(key, "%s is a word of the mesh's subjects; choose another name, such as %s", show(name), show(name+"-server"))
	}
}

// serverKind returns the transport of a server in [mcp_servers], given by type or derived from command or url; "" was
// reported.
func (t *table) serverKind() ServerType {
	if !t.has("type") && !t.has("transport") {
		kind := t.guessKind()
		if kind != "" {
			t.misfits("type", string(kind), serverFields)
		}
		return kind
	}
	return ServerType(t.kind("type", "transport", []string{"stdio", "streamable_http"}, serverFields))
}

// guessKind derives a server's transport from its other keys.
func (t *table) guessKind() ServerType {
	switch {
	case t.broken:
		// reported
	case t.has("command") && t.has("url"):
		t.fault(t.path, `has both command and url; set "type" to choose one`)
	case t.has("command"):
		return ServerStdio
	case t.has("url"):
		return ServerStreamableHTTP
	default:
		hint := ""
		for _, k := range slices.Sorted(maps.Keys(t.m)) {
			if near, ok := nearest.Word(k, []string{"command", "url"}); ok {
				hint = "; did you mean " + near + " by " + show(k) + "?"
			}
		}
		t.fault(t.path, "has neither command nor url; want one of them%s", hint)
	}
	return ""
}

// server reads one server of the given type; "" is an invalid type that was reported already.
func (t *table) server(kind ServerType) MCPServer {
	s := MCPServer{Type: kind}
	s.Command = t.command(kind == ServerStdio)
	t.placeholders(t.key("command"), s.Command)
	s.Args = t.args()
	for i, a := range s.Args {
		t.placeholders(element(t.key("args"), i), a)
	}
	s.Env = t.env()
	s.Cwd = t.cwd()
	t.checkProgram(kind == ServerStdio, s.Command, s.Cwd)
	s.HandshakeTimeout = t.handshakeTimeout()
	s.URL = t.url(kind == ServerStreamableHTTP, true)
	s.Headers = t.headers()
	return s
}

func (t *table) cwd() string {
	s, ok := t.str("cwd")
	switch {
	case !ok:
	case blank(s):
		t.fault(t.key("cwd"), "is blank; want a directory, or no cwd for the extension's own")
	case strings.ContainsRune(s, 0):
		t.fault(t.key("cwd"), "contains a NUL character, which is not allowed in a path")
	}
	t.placeholders(t.key("cwd"), s)
	return s
}

// spelling converts the names that MCP clients use for a server's transport to ours; it returns others unchanged.
func spelling(s string) ServerType {
	switch strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s)) {
	case "stdio", "local":
		return ServerStdio
	case "http", "streamablehttp", "streaminghttp", "httpstream", "remote":
		return ServerStreamableHTTP
	}
	return ServerType(s)
}
