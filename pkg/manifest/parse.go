package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// Limits of texts for people, in Unicode characters.
const (
	MaxDescription = 512
	maxLabel       = 128 // plugin.name, meta.author, meta.license: they travel in every announce
)

// Options are what a manifest's rules need to know of the host. The zero value checks everything that does
// not depend on one.
type Options struct {
	// AgentVersion is the host's version, compared with plugin.min_agent_version. Empty: not compared.
	AgentVersion string
	// ReservedIDs are ids that the host uses itself, besides those of Reserved.
	ReservedIDs []string
	// Sidecar is the .mcp.json beside the manifest, if there is one. It is read only when the manifest has
	// no mcp_servers of its own. It is a part of parsing because of the one rule that needs both files: a
	// manifest without [transport] is legal only as a container of servers, wherever they come from.
	Sidecar *Sidecar
	// Program says what is wrong with a program to run, "" for nothing: cwd is the directory that a server names, ""
	// for the extension's own. What it says becomes a warning at the command, and no more, since a build may make the
	// program later. It is not asked about a command or a cwd with placeholders. Nil: nobody looks.
	Program func(command, cwd string) string
}

// Sidecar is an .mcp.json file beside a manifest.
type Sidecar struct {
	Path string // for diagnostics
	Data []byte
}

// Parse reads a plugin.toml; path is only for the diagnostics. It returns every semantic fault of the file at
// once, in the file's order, each with line, column and key; a fault of the syntax, a file over MaxFile or one
// that is not UTF-8 comes alone. The manifest is nil when any diagnostic is an Error; Warn and Info come with
// one. A sidecar's diagnostics follow, under its own path; they are warnings only.
//
// Parse does not look at the file system or the environment, and does not panic, whatever data holds.
func Parse(path string, data []byte, opt Options) (*Manifest, []Diagnostic) {
	f, ok := open(path, data, Error)
	if !ok {
		return nil, f.done()
	}
	f.program = opt.Program
	tree, ok := f.decodeTOML()
	if !ok {
		return nil, f.done()
	}
	var sidecar []Diagnostic
	root := f.root(tree)
	m := &Manifest{Hash: hash(data), Plugin: root.plugin(opt)}
	m.MCPServers = root.servers()
	if !root.listsServers() && opt.Sidecar != nil {
		m.MCPServers, sidecar = parseSidecar(*opt.Sidecar, opt.Program)
		m.Hash = hash(data, []byte{0}, opt.Sidecar.Data)
	} else if opt.Sidecar != nil {
		f.info("mcp_servers", "the servers here are used; the sidecar %s is not read", opt.Sidecar.Path)
	}
	m.Transport = root.transport(m.Plugin.ID)
	m.Capabilities = root.capabilities(m.Transport.Dialect)
	root.container(m)
	m.Requires = root.requires(Error)
	m.Context = Context{Passthrough: root.context()}
	m.Meta = root.meta()
	root.unknown(Error)
	diags := append(f.done(), sidecar...)
	if f.faults > 0 {
		return nil, diags
	}
	return m, diags
}

// hash is the manifest_hash of the parts put together.
func hash(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// home is the table in which a key that stands at the top of the file belongs: the usual slip is to leave
// out [plugin] or [transport].
func home(key string) string {
	for _, t := range []struct{ name, keys string }{
		{"[plugin]", "id version name description min_agent_version priority"},
		{"[capabilities]", "tools hooks channels providers"},
		{"[transport]", "type kind command args env dialect handshake_timeout subject_prefix url headers"},
		{"[requires]", "bins"},
		{"[context]", "passthrough"},
		{"[meta]", "author license"},
	} {
		if strings.Contains(" "+t.keys+" ", " "+key+" ") {
			return t.name
		}
	}
	return ""
}

func (t *table) plugin(opt Options) Plugin {
	t = t.table("plugin")
	if !t.present {
		t.fault("plugin", `missing; a manifest starts with [plugin], id = "my-ext" and version = "1.0.0"`)
		t.broken = true
	}
	p := Plugin{
		Name:        t.text("name", maxLabel),
		Description: t.text("description", MaxDescription),
	}
	p.ID = t.id(opt.ReservedIDs)
	p.Version, _ = t.version("version")
	t.missing("version", `strict semver, such as "1.0.0"`)
	p.MinAgentVersion = t.minAgentVersion(opt.AgentVersion)
	n, _ := t.integer("priority", math.MinInt32, math.MaxInt32)
	p.Priority = int32(n)
	t.unknown(Error)
	return p
}

func (t *table) id(hostReserved []string) string {
	t.missing("id", `the extension's id, such as "my-ext"`)
	id, ok := t.str("id")
	key := t.key("id")
	if !ok || !t.name(key, id, MaxID) {
		return id
	}
	if Reserved(id) {
		t.fault(key, "%s is reserved for the agent and the mesh; choose another id, such as %s", show(id), show(id+"-ext"))
		return id
	}
	for _, r := range hostReserved {
		if r == id {
			t.fault(key, "%s is reserved on this host (reserved_ids); choose another id, such as %s", show(id), show(id+"-ext"))
			break
		}
	}
	return id
}

// version is the strict semver at key; nil when there is none.
func (t *table) version(key string) (string, *semver.Version) {
	s, ok := t.str(key)
	if !ok {
		return "", nil
	}
	v, err := semver.StrictNewVersion(s)
	if err == nil {
		return s, v
	}
	example := "1.0.0"
	if lax, err := semver.NewVersion(s); err == nil && lax.String() != s {
		example = lax.String()
	}
	t.fault(t.key(key), "%s is not strict semver; want major.minor.patch, such as %s", show(s), show(example))
	return s, nil
}

func (t *table) minAgentVersion(agent string) string {
	s, least := t.version("min_agent_version")
	if least == nil || agent == "" {
		return s
	}
	key := t.key("min_agent_version")
	host, err := semver.NewVersion(agent)
	switch {
	case err != nil:
		t.warn(key, "cannot be compared: this host's agent_version %s is not semver", show(agent))
	case host.LessThan(least):
		t.fault(key, "needs agent %s, but this host is %s; upgrade the host, or install an older version of the extension",
			show(s), show(agent))
	}
	return s
}

func (t *table) requires(unknown Level) Requires {
	t = t.table("requires")
	var r Requires
	var skip func(int) bool
	r.Bins, skip = t.strs("bins")
	for i, b := range r.Bins {
		if !skip(i) && (blank(b) || !printable(b)) {
			t.fault(element(t.key("bins"), i), `%s is no program's name; want one to be found on $PATH, such as "git"`, show(b))
		}
	}
	r.Env, skip = t.strs("env")
	for i, e := range r.Env {
		if !skip(i) && !variable(e) {
			t.fault(element(t.key("env"), i), `not the name of a variable; want one such as "MY_TOKEN", without a value`)
		}
	}
	t.unknown(unknown)
	return r
}

func (t *table) context() bool {
	t = t.table("context")
	b := t.boolean("passthrough")
	t.unknown(Error)
	return b
}

func (t *table) meta() Meta {
	t = t.table("meta")
	m := Meta{Author: t.text("author", maxLabel), License: t.text("license", maxLabel)}
	t.unknown(Error)
	return m
}
