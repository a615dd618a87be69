package manifest

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/wire"
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
// cannot be read or none of its servers can be used. The mesh's own entry, extctl mcp, is left out with an Info. Options.Sidecar and Options.AgentVersion are not used.
func ParseSidecar(dir, path string, data []byte, opt Options) (*Manifest, []Diagnostic) {
	d, servers := parseSidecar(Sidecar{path, data}, document.Error, opt.Program)
	id, note := dirID(dir, opt.ReservedIDs)
	m := &Manifest{
		Plugin: Plugin{ID: id, Version: "0.0.0", Name: document.Clip(dir, maxLabel-1)}, MCPServers: servers, Hash: hash(data),
	}
	diags := d.Findings()
	if note.Message != "" {
		note.Path = path
		diags = append([]Diagnostic{note}, diags...)
	}
	if len(m.MCPServers) == 0 && !HasErrors(diags) {
		diags = append(diags, Diagnostic{Level: Error, Path: path, Message: noServer})
	}
	if HasErrors(diags) {
		return nil, diags
	}
	return m, diags
}

// dirID converts the name of a directory to an id, with a note if they differ.
func dirID(dir string, hostReserved []string) (id string, note Diagnostic) {
	id = legalID(dir, MaxID)
	if id == "" {
		return "", Diagnostic{Level: Error, Message: fmt.Sprintf(
			"the directory's name %s cannot be converted to an id; rename it, or add a %s with an id", document.Show(dir), FileName)}
	}
	why := "is not a legal id"
	if Reserved(id) || slices.Contains(hostReserved, id) {
		id, why = legalID(id, MaxID-len("-mcp"))+"-mcp", "is reserved"
	}
	if id != dir {
		note = Diagnostic{Level: Info, Message: fmt.Sprintf(
			"the extension's id is %s, because the directory's name %s %s", document.Show(id), document.Show(dir), why)}
	}
	return id, note
}

// parseSidecar reads the servers of a sidecar. The level is that of faults that affect the whole file.
func parseSidecar(s Sidecar, level document.Level, program func(command, cwd string) string) (*document.Doc, map[string]Transport) {
	d, ok := document.Open(s.Path, s.Data, document.Options{Level: level, Loose: true})
	if !ok {
		return d, nil
	}
	top, ok := d.JSON()
	if !ok {
		return d, nil
	}
	return d, (&table{top, program}).clientServers()
}

func (t *table) clientServers() map[string]Transport {
	key := ""
	for _, k := range []string{"mcpServers", "mcp_servers", "servers"} {
		switch {
		case !t.Has(k):
		case key == "":
			key = k
		default:
			t.Warn(k, "is ignored because %s is present too; keep one", key)
		}
	}
	if key == "" {
		t.Fault("", `has no servers; want an object such as {"mcpServers": {"name": {"command": "…"}}}`)
		return nil
	}
	return serversTable{t.table(key)}.members()
}

// members reads the servers of a sidecar, with the names that they have as members of the extension.
func (t serversTable) members() map[string]Transport {
	if len(t.Names()) > maxServers {
		t.Fault(t.Path, "has %d servers; want at most %d", len(t.Names()), maxServers)
		return nil
	}
	names := t.memberNames()
	t.Level = document.Warn // from here on a fault affects only one server
	out := make(map[string]Transport, len(t.Names()))
	for _, written := range slices.Sorted(maps.Keys(names)) {
		before := t.Faults
		sub := t.server(written)
		if off, _ := sub.Bool("disabled"); off {
			t.Info(sub.Path, "is disabled")
			continue
		}
		kind := sub.sidecarKind()
		sub.dropOther(kind)
		if sub.Has("envFile") {
			t.Warn(sub.Key("envFile"), "is not read; write its variables into env")
		}
		server := sub.server(kind).withHome()
		switch {
		case server.isMesh(written):
			t.Info(sub.Path, "is left out: extctl mcp offers the tools of a mesh, which would be offered once more")
		case t.Faults == before:
			out[names[written]] = server
		default:
			t.Warn(sub.Path, leftOut)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// The warning about a server with faults, and the error of a file without any server to use.
const (
	leftOut  = "is left out because of the faults reported for it"
	noServer = "has no server that can be used; want at least one"
)

// IsWithoutServers reports whether a diagnostic is about an .mcp.json that has no server to use: they were removed, are switched off,
// or have faults.
func IsWithoutServers(d Diagnostic) bool { return d.Level == Error && d.Message == noServer }

// LeftOut returns the name, as a member, of a server that an .mcp.json has, and that is not used because of its faults; ok is false for
// other diagnostics.
func LeftOut(d Diagnostic) (member string, ok bool) {
	if d.Level != document.Warn || d.Message != leftOut {
		return "", false
	}
	_, name, _ := strings.Cut(d.Key, ".")
	if written, err := strconv.Unquote(name); err == nil {
		name = written
	}
	return memberName(name), true
}

// isMesh reports whether a server is extctl mcp, as `extctl mcp install` writes it, for stdin and stdout or HTTP.
func (s Transport) isMesh(name string) bool {
	base := s.Command[strings.LastIndexAny(s.Command, `/\`)+1:]
	if strings.TrimSuffix(base, ".exe") == "extctl" {
		return slices.Contains(s.Args, "mcp")
	}
	u, err := url.Parse(s.URL)
	if err != nil || name != "mesh" || u.Path != "/mcp" && !strings.HasPrefix(u.Path, "/mcp/") {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// memberNames returns the member's name for the name of each server. Illegal names are converted to legal ones that no
// other server has; a name that cannot be converted is reported and left out.
func (t serversTable) memberNames() map[string]string {
	names, taken := map[string]string{}, map[string]bool{}
	var illegal []string
	for _, name := range t.Names() {
		if name != "" && memberName(name) == name {
			names[name], taken[name] = name, true
		} else {
			illegal = append(illegal, name)
		}
	}
	for _, name := range illegal {
		fixed := memberName(name)
		switch {
		case fixed == "":
			t.Warn(t.Key(name), "is left out because its name has no letter from a to z; rename it")
		case taken[fixed]:
			t.Warn(t.Key(name), "is left out because another server has its name here, %s; rename one of them", document.Show(fixed))
		default:
			names[name], taken[fixed] = fixed, true
			t.Info(t.Key(name), "its name here is %s", document.Show(fixed))
		}
	}
	return names
}

// memberName returns the member's name for the name of a server: the same, or a legal one; "" if no legal name can be made of it.
func memberName(name string) string {
	if idSyntax.MatchString(name) && len(name) <= maxServerName && !wire.ReservedMember(name) {
		return name
	}
	name = legalID(name, maxServerName)
	if wire.ReservedMember(name) {
		name += "-server"
	}
	return name
}

// sidecarKind returns the transport of a server in a sidecar, given or derived; "" was reported.
func (t serverTable) sidecarKind() string {
	if !t.Has("type") && !t.Has("transport") {
		return t.guessKind()
	}
	s, key := t.either("type", "transport")
	switch kind := spelling(s); {
	case key == "":
		// reported
	case kind == string(Stdio), kind == streamableHTTP:
		return kind
	case slices.Contains([]string{"sse", "http+sse", "http-sse"}, strings.ToLower(s)):
		t.Fault(t.Key(key), `SSE is not supported: MCP deprecated it, and it ties a session to one connection; use the server's streamable HTTP endpoint with "http"`)
	default:
		t.Fault(t.Key(key), `%s is not a supported transport; want "stdio" or "streamable_http"`, document.Show(s))
	}
	return ""
}

// dropOther removes the fields of the other transport, which other clients ignore, too.
func (t serverTable) dropOther(kind string) {
	switch kind {
	case streamableHTTP:
		t.Drop("command", "args", "env", "cwd", "handshake_timeout")
	case string(Stdio):
		t.Drop("url", "headers")
	}
}

// withHome replaces "~/".
func (s Transport) withHome() Transport {
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
