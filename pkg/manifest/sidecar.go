package manifest

import (
	"maps"
	"slices"
)

// SidecarName is the name of the file beside a manifest that MCP clients keep their servers in.
const SidecarName = ".mcp.json"

// ParseSidecar reads the servers of an .mcp.json: the object mcpServers or mcp_servers at its top, as other
// MCP clients write it. A server's transport stands in type or transport, in any of the usual spellings of
// stdio and streamable HTTP, or is guessed from command or url. Keys that are other clients' business are
// passed over, and so is a server with disabled set to true.
//
// Nothing in a sidecar is an Error: a server with a fault is left out with warnings that say why, and of a
// file that is no JSON object nothing is used. SSE servers are refused: MCP deprecated that transport in 2025.
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
		t.warn("mcp_servers", "is passed over, since mcpServers is here too; keep one")
	}
	if !t.has(key) {
		t.fault("", `has no servers; want an object such as {"mcpServers": {"name": {"command": "…"}}}`)
		return nil
	}
	t = t.table(key)
	if len(t.m) > MaxServers {
		t.fault(t.path, "has %d servers; want at most %d", len(t.m), MaxServers)
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

// sidecarKind is the transport of a server in a sidecar, said or guessed; "" was reported.
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
		t.fault(t.key(key), `%s is not a transport here; want "stdio" or "streamable_http"`, show(s))
	}
	return ""
}

func (t *table) guessKind() ServerType {
	switch {
	case t.broken || t.m["type"] != nil || t.m["transport"] != nil:
		// reported
	case t.has("command") && t.has("url"):
		t.fault(t.path, `has both command and url; say with "type" which of them counts`)
	case t.has("command"):
		return ServerStdio
	case t.has("url"):
		return ServerStreamableHTTP
	default:
		t.fault(t.path, "has neither command nor url; want one of them")
	}
	return ""
}

// only drops the fields that belong to the other transport; other clients pass over them too.
func (s MCPServer) only() MCPServer {
	if s.Type == ServerStdio {
		s.URL, s.Headers = "", nil
	} else {
		s.Command, s.Args, s.Env, s.Cwd = "", nil, nil, ""
	}
	return s
}
