package manifest

import (
	"maps"
	"slices"
)

// SidecarName is the name of the file next to a manifest in which MCP clients configure their servers.
const SidecarName = ".mcp.json"

// ParseSidecar reads the servers of an .mcp.json: its top-level object mcpServers or mcp_servers, as other MCP
// clients write it. A server's transport is given by type or transport, in any of the usual spellings of stdio and
// streamable HTTP, or derived from command or url. Keys of other clients are ignored, and so is a server with
// disabled set to true.
//
// Nothing in a sidecar is an Error: an invalid server is skipped with warnings, and a file that is not a JSON object
// is not used. SSE servers are refused: MCP deprecated that transport in 2025.
func ParseSidecar(path string, data []byte) (map[string]MCPServer, []Diagnostic) {
	return parseSidecar(Sidecar{path, data}, nil)
}

func parseSidecar(s Sidecar, program func(command, cwd string) string) (map[string]MCPServer, []Diagnostic) {
	f, ok := open(s.Path, s.Data, Warn)
	if !ok {
		return nil, f.done()
	}
	f.program = program
	tree, ok := f.decodeJSON()
	if !ok {
		return nil, f.done()
	}
	out := f.root(tree).sidecar()
	return out, f.done()
}

func (t *table) sidecar() map[string]MCPServer {
	key := "mcpServers"
	if !t.has(key) {
		key = "mcp_servers"
	} else if t.has("mcp_servers") {
		t.warn("mcp_servers", "is ignored because mcpServers is present too; keep one")
	}
	if !t.has(key) {
		t.fault("", `has no servers; want an object such as {"mcpServers": {"name": {"command": "…"}}}`)
		return nil
	}
	t = t.table(key)
	if len(t.m) > maxServers {
		t.fault(t.path, "has %d servers; want at most %d", len(t.m), maxServers)
		return nil
	}
	out := make(map[string]MCPServer, len(t.m))
	for _, name := range slices.Sorted(maps.Keys(t.m)) {
		before := t.faults
		sub := t.table(name)
		if sub.boolean("disabled") {
			t.info(sub.path, "is disabled")
			continue
		}
		t.serverName(name)
		server := sub.server(sub.sidecarKind()).only()
		if t.faults == before {
			out[name] = server
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// sidecarKind returns the transport of a server in a sidecar, given or derived; "" was reported.
func (t *table) sidecarKind() ServerType {
	s, key := t.either("type", "transport")
	if key == "" {
		return t.guessKind()
	}
	switch kind := spelling(s); kind {
	case ServerStdio, ServerStreamableHTTP:
		return kind
	case "sse", "SSE", "http+sse", "http-sse":
		t.fault(t.key(key), `SSE is not supported: MCP deprecated it, and it ties a session to one connection; use the server's streamable HTTP endpoint with "http"`)
	default:
		t.fault(t.key(key), `%s is not a supported transport; want "stdio" or "streamable_http"`, show(s))
	}
	return ""
}

func (t *table) guessKind() ServerType {
	switch {
	case t.broken || t.m["type"] != nil || t.m["transport"] != nil:
		// reported
	case t.has("command") && t.has("url"):
		t.fault(t.path, `has both command and url; set "type" to choose one`)
	case t.has("command"):
		return ServerStdio
	case t.has("url"):
		return ServerStreamableHTTP
	default:
		t.fault(t.path, "has neither command nor url; want one of them")
	}
	return ""
}

// only removes the fields of the other transport; other clients ignore them too.
func (s MCPServer) only() MCPServer {
	if s.Type == ServerStdio {
		s.URL, s.Headers = "", nil
	} else {
		s.Command, s.Args, s.Env, s.Cwd, s.HandshakeTimeout = "", nil, nil, "", 0
	}
	return s
}
