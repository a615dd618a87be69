package manifest

import (
	"maps"
	"slices"
	"strings"
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
		out[name] = sub.server(ServerType(sub.kind("type", "transport", []string{"stdio", "streamable_http"}, serverFields)))
		sub.unknown(Error)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (t *table) serverName(name string) {
	key := t.key(name)
	if t.name(key, name, maxServerName) && Reserved(name) {
		t.fault(key, "%s is reserved for the agent and the mesh; choose another name, such as %s", show(name), show(name+"-server"))
	}
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
