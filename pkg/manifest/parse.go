package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/extmesh/extmesh/internal/document"
)

// maxVersion is the longest version that registries accept, in bytes.
const maxVersion = 64

// Limits of texts for people, in Unicode characters.
const (
	maxDescription = 512
	maxLabel       = 128 // plugin.name, meta.author, meta.license: they are part of every announcement
)

// Options are the host's settings that the rules depend on. The zero value checks everything else.
type Options struct {
	// AgentVersion is the host's version, compared with plugin.min_agent_version; empty: not compared.
	AgentVersion string
	// ReservedIDs are ids that the host uses itself, in addition to the ones that Reserved reports.
	ReservedIDs []string
	// Sidecar is the .mcp.json next to the manifest, if any. It is read only if the manifest has no mcp_servers of
	// its own. Parse needs it for the rule that a manifest without [transport] is valid only as a container of
	// servers, from either file.
	Sidecar *Sidecar
	// Program returns what is wrong with a program, or "". cwd is the directory that a server specifies, or "" for
	// the extension's own. The result becomes only a warning, because a build may create the program later. Commands
	// and directories with placeholders are not checked. Nil: no check.
	Program func(command, cwd string) string
}

// Sidecar is an .mcp.json next to a manifest.
type Sidecar struct {
	Path string // for diagnostics
	Data []byte
}

// Parse parses a plugin.toml; path is only for the diagnostics. It returns all semantic faults of the file at once,
// sorted by position, each with line, column and key. A syntax error, a file over MaxFile and a file that is not
// UTF-8 are reported alone. The manifest is nil if any diagnostic is an Error. The diagnostics of a sidecar follow,
// with its own path; they are never Errors.
//
// Parse does not use the file system or the environment, and does not panic on any input.
func Parse(path string, data []byte, opt Options) (*Manifest, []Diagnostic) {
	d, ok := document.Open(path, data, document.Options{Hint: tableOf})
	if !ok {
		return nil, d.Findings()
	}
	top, ok := d.TOML()
	if !ok {
		return nil, d.Findings()
	}
	var sidecar []Diagnostic
	root := &table{top, opt.Program}
	m := &Manifest{Hash: hash(data), Plugin: root.plugin(opt)}
	m.MCPServers = serversTable{root.table("mcp_servers")}.servers()
	if !root.listsServers() && opt.Sidecar != nil {
		var s *document.Doc
		s, m.MCPServers = parseSidecar(*opt.Sidecar, document.Warn, opt.Program)
		sidecar = s.Findings()
	} else if opt.Sidecar != nil {
		d.Info("mcp_servers", "the servers here are used; the sidecar %s is not read", opt.Sidecar.Path)
	}
	m.Transport = transportTable{root.table("transport")}.transport(m.Plugin.ID)
	m.Capabilities = root.capabilities(m.Transport.Dialect)
	root.container(m)
	m.Requires = root.requires(document.Error)
	m.Context = Context{Passthrough: root.context()}
	m.Meta = root.meta()
	root.Unknown(document.Error)
	diags := append(d.Findings(), sidecar...)
	if d.Faults > 0 {
		return nil, diags
	}
	return m, diags
}

// hash returns the manifest_hash of the concatenated parts.
func hash(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// tableOf is the hint about an unknown key: the table that it belongs to, because a common mistake is to omit [plugin]
// or [transport].
func tableOf(_, key string) string {
	for _, t := range []struct{ name, keys string }{
		{"[plugin]", "id version name description min_agent_version priority"},
		{"[capabilities]", "tools hooks channels providers"},
		{"[transport]", "type kind command args env dialect handshake_timeout subject_prefix url headers"},
		{"[requires]", "bins"},
		{"[context]", "passthrough"},
		{"[meta]", "author license"},
	} {
		if strings.Contains(" "+t.keys+" ", " "+key+" ") {
			return "it belongs in " + t.name
		}
	}
	return ""
}

func (t *table) plugin(opt Options) Plugin {
	t = t.table("plugin")
	if !t.Present() {
		t.Fault("plugin", `missing; a manifest starts with [plugin], id = "my-ext" and version = "1.0.0"`)
		t.SetBroken()
	}
	p := Plugin{
		Name:        t.text("name", maxLabel),
		Description: t.text("description", maxDescription),
	}
	p.ID = t.id(opt.ReservedIDs)
	p.Version, _ = t.version("version")
	t.Missing("version", `strict semver, such as "1.0.0"`)
	p.MinAgentVersion = t.minAgentVersion(opt.AgentVersion)
	n, _ := t.Int("priority", math.MinInt32, math.MaxInt32)
	p.Priority = int32(n)
	t.Unknown(document.Error)
	return p
}

func (t *table) id(hostReserved []string) string {
	t.Missing("id", `the extension's id, such as "my-ext"`)
	id, ok := t.Str("id")
	key := t.Key("id")
	if !ok || !t.name(key, id, MaxID) {
		return id
	}
	if Reserved(id) {
		t.Fault(key, "%s is reserved for the agent and the mesh; choose another id, such as %s", document.Show(id), document.Show(id+"-ext"))
		return id
	}
	for _, r := range hostReserved {
		if r == id {
			t.Fault(key, "%s is reserved on this host (reserved_ids); choose another id, such as %s", document.Show(id), document.Show(id+"-ext"))
			break
		}
	}
	return id
}

// version reads the strict semver at key; nil if it is absent or invalid.
func (t *table) version(key string) (string, *semver.Version) {
	s, ok := t.Str(key)
	if !ok {
		return "", nil
	}
	v, err := semver.StrictNewVersion(s)
	switch {
	case len(s) > maxVersion:
		t.Fault(t.Key(key), "has %d bytes; want at most %d", len(s), maxVersion)
		return s, nil
	case err == nil:
		return s, v
	}
	example := "1.0.0"
	if lax, err := semver.NewVersion(s); err == nil && lax.String() != s {
		example = lax.String()
	}
	t.Fault(t.Key(key), "%s is not strict semver; want major.minor.patch, such as %s", document.Show(s), document.Show(example))
	return s, nil
}

func (t *table) minAgentVersion(agent string) string {
	s, least := t.version("min_agent_version")
	if least == nil || agent == "" {
		return s
	}
	key := t.Key("min_agent_version")
	host, err := semver.NewVersion(agent)
	switch {
	case err != nil:
		t.Warn(key, "cannot be compared: this host's agent_version %s is not semver", document.Show(agent))
	case host.LessThan(least):
		t.Fault(key, "needs agent %s, but this host is %s; upgrade the host, or install an older version of the extension",
			document.Show(s), document.Show(agent))
	}
	return s
}

func (t *table) requires(unknown document.Level) Requires {
	t = t.table("requires")
	var r Requires
	var skip func(int) bool
	r.Bins, skip, _ = t.Strs("bins")
	for i, b := range r.Bins {
		if !skip(i) && (blank(b) || !printable(b)) {
			t.Fault(document.Element(t.Key("bins"), i), `%s is not a program name; want one to look up on $PATH, such as "git"`, document.Show(b))
		}
	}
	r.Env, skip, _ = t.Strs("env")
	for i, e := range r.Env {
		if !skip(i) && !variable(e) {
			t.Fault(document.Element(t.Key("env"), i), `not a variable name; want one such as "MY_TOKEN", without a value`)
		}
	}
	t.Unknown(unknown)
	return r
}

func (t *table) context() bool {
	t = t.table("context")
	b, _ := t.Bool("passthrough")
	t.Unknown(document.Error)
	return b
}

func (t *table) meta() Meta {
	t = t.table("meta")
	m := Meta{Author: t.text("author", maxLabel), License: t.text("license", maxLabel)}
	t.Unknown(document.Error)
	return m
}
