package manifest

import (
	"maps"
	"slices"
	"strings"
)

// SidecarName is the name of the file in which MCP clients configure their servers.
const SidecarName = ".mcp.json"

// ParseSidecar parses an .mcp.json, or the file of another MCP client, that is not next to a plugin.toml: a container
// of its servers, named after dir, the base name of its directory. A name that is no legal id is converted to one, with
// an Info.
//
// The servers are in the top-level object mcpServers, mcp_servers or servers. The file may have comments and trailing
// commas. A server's transport is given by type or transport, in any of the usual spellings of stdio and streamable
// HTTP, or derived from command or url. Its name is converted to a legal one, with an Info. Numbers and booleans in
// args, env and headers are used as they are written, and "~/" at the beginning of a command, an argument, a variable
// or cwd is ${HOME}/. Keys of other clients are ignored, and so is a server with disabled set to true. SSE servers are
// refused: MCP deprecated that transport in 2025.
//
// An invalid server is left out with warnings, and the others are used. The manifest is nil, with an Error, if the file
// cannot be read or none of its servers can be used. Options.Sidecar and Options.AgentVersion are not used.
func ParseSidecar(dir, path string, data []byte, opt Options) (*Manifest, []Diagnostic) {
	f, ok := open(path, data, Error)
	m := &Manifest{Plugin: Plugin{Version: "0.0.0", Name: clip(dir, maxLabel-1)}, Hash: hash(data)}
	if ok {
		m.Plugin.ID = f.dirID(dir, opt.ReservedIDs)
		m.MCPServers = f.sidecar(opt.Program)
	}
	diags := f.done()
	if len(m.MCPServers) == 0 && !HasErrors(diags) {
		diags = append(diags, Diagnostic{Level: Error, Path: path, Message: "has no server that can be used; want at least one"})
	}
	if HasErrors(diags) {
		return nil, diags
	}
	return m, diags
}

// dirID converts the name of a directory to an id.
func (f *file) dirID(dir string, hostReserved []string) string {
	id := legalID(dir, MaxID)
	if id == "" {
		f.fault("", "the directory's name %s cannot be converted to an id; rename it, or add a %s with an id", show(dir), FileName)
		return ""
	}
	why := "is not a legal id"
	if Reserved(id) || slices.Contains(hostReserved, id) {
		id, why = legalID(id, MaxID-len("-mcp"))+"-mcp", "is reserved"
	}
	if id != dir {
		f.info("", "the extension's id is %s, because the directory's name %s %s", show(id), show(dir), why)
	}
	return id
}

// sidecar reads the servers of an opened sidecar.
func (f *file) sidecar(program func(command, cwd string) string) map[string]MCPServer {
	f.program, f.loose = program, true
	f.text = withoutComments(f.text)
	tree, ok := f.decodeJSON()
	if !ok {
		return nil
	}
	return f.root(tree).sidecar()
}

func (t *table) sidecar() map[string]MCPServer {
	key := ""
	for _, k := range []string{"mcpServers", "mcp_servers", "servers"} {
		switch {
		case !t.has(k):
		case key == "":
			key = k
		default:
			t.warn(k, "is ignored because %s is present too; keep one", key)
		}
	}
	if key == "" {
		t.fault("", `has no servers; want an object such as {"mcpServers": {"name": {"command": "…"}}}`)
		return nil
	}
	t = t.table(key)
	if len(t.m) > maxServers {
		t.fault(t.path, "has %d servers; want at most %d", len(t.m), maxServers)
		return nil
	}
	names := t.memberNames()
	t.level = Warn // from here on a fault affects only one server
	out := make(map[string]MCPServer, len(t.m))
	for _, written := range slices.Sorted(maps.Keys(names)) {
		before := t.faults
		sub := t.table(written)
		if sub.boolean("disabled") {
			t.info(sub.path, "is disabled")
			continue
		}
		server := sub.server(sub.sidecarKind()).only()
		if t.faults == before {
			out[names[written]] = server
		} else {
			t.warn(sub.path, "is left out because of the faults reported for it")
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// memberNames returns the member's name for the name of each server. Illegal names are converted to legal ones that no
// other server has; a name that cannot be converted is reported and left out.
func (t *table) memberNames() map[string]string {
	names, taken := map[string]string{}, map[string]bool{}
	var illegal []string
	for _, name := range slices.Sorted(maps.Keys(t.m)) {
		if idSyntax.MatchString(name) && len(name) <= maxServerName && !reservedMember(name) {
			names[name], taken[name] = name, true
		} else {
			illegal = append(illegal, name)
		}
	}
	for _, name := range illegal {
		fixed := legalID(name, maxServerName)
		if reservedMember(fixed) {
			fixed += "-server"
		}
		switch {
		case fixed == "":
			t.warn(t.key(name), "is left out because its name has no letter from a to z; rename it")
		case taken[fixed]:
			t.warn(t.key(name), "is left out because another server has its name here, %s; rename one of them", show(fixed))
		default:
			names[name], taken[fixed] = fixed, true
			t.info(t.key(name), "its name here is %s", show(fixed))
		}
	}
	return names
}

// sidecarKind returns the transport of a server in a sidecar, given or derived; "" was reported.
func (t *table) sidecarKind() ServerType {
	if !t.has("type") && !t.has("transport") {
		return t.guessKind()
	}
	s, key := t.either("type", "transport")
	switch kind := spelling(s); {
	case key == "":
		// reported
	case kind == ServerStdio, kind == ServerStreamableHTTP:
		return kind
	case slices.Contains([]string{"sse", "http+sse", "http-sse"}, strings.ToLower(s)):
		t.fault(t.key(key), `SSE is not supported: MCP deprecated it, and it ties a session to one connection; use the server's streamable HTTP endpoint with "http"`)
	default:
		t.fault(t.key(key), `%s is not a supported transport; want "stdio" or "streamable_http"`, show(s))
	}
	return ""
}

// only removes the fields of the other transport, which other clients ignore too, and replaces "~/".
func (s MCPServer) only() MCPServer {
	if s.Type == ServerStreamableHTTP {
		s.Command, s.Args, s.Env, s.Cwd, s.HandshakeTimeout = "", nil, nil, "", 0
		return s
	}
	s.URL, s.Headers = "", nil
	s.Command, s.Cwd = home(s.Command), home(s.Cwd)
	for i, a := range s.Args {
		s.Args[i] = home(a)
	}
	for name, value := range s.Env {
		s.Env[name] = home(value)
	}
	return s
}

func home(s string) string {
	if rest, ok := strings.CutPrefix(s, "~/"); ok {
		return "${HOME}/" + rest
	}
	return s
}

// withoutComments replaces the comments of a JSON text by spaces, and the commas before a closing bracket. Line breaks
// and all positions stay.
func withoutComments(text string) string {
	b := []byte(text)
	blank := func(from, to int) {
		for i := from; i < to; i++ {
			if b[i] != '\n' && b[i] != '\r' {
				b[i] = ' '
			}
		}
	}
	comma := -1 // the offset of a comma with only white space and comments after it
	for i := 0; i < len(b); i++ {
		rest := text[i:]
		switch {
		case b[i] == '"':
			comma = -1
			for i++; i < len(b) && b[i] != '"' && b[i] != '\n'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case strings.HasPrefix(rest, "//"):
			comment, _, _ := strings.Cut(rest, "\n")
			end := i + len(comment)
			blank(i, end)
			i = end - 1
		case strings.HasPrefix(rest, "/*"):
			comment, _, closed := strings.Cut(rest[2:], "*/")
			if !closed {
				return string(b) // the decoder reports it
			}
			end := i + len("/*") + len(comment) + len("*/")
			blank(i, end)
			i = end - 1
		case b[i] == ',':
			comma = i
		case (b[i] == '}' || b[i] == ']') && comma >= 0:
			b[comma] = ' '
			comma = -1
		case !strings.ContainsRune(" \t\r\n", rune(b[i])):
			comma = -1
		}
	}
	return string(b)
}
