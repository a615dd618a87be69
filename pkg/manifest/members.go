package manifest

import (
	"encoding/json"
	"maps"
	"slices"
)

// Members returns the bundled MCP servers as separate manifests, sorted by name, so that a bridge can run, gate and
// announce each like any other extension: the id is <id>.<name>, Parent is set, the dialect is mcp, tools are all
// that the server offers, and version, priority, requirements, context and meta are the parent's.
func (m *Manifest) Members() []*Manifest {
	var out []*Manifest
	for _, name := range slices.Sorted(maps.Keys(m.MCPServers)) {
		t := m.MCPServers[name]
		t.Dialect = MCP
		member := &Manifest{
			Plugin: Plugin{
				ID: m.Plugin.ID + "." + name, Version: m.Plugin.Version, Name: name,
				MinAgentVersion: m.Plugin.MinAgentVersion, Priority: m.Plugin.Priority,
			},
			Capabilities: Capabilities{Tools: []string{"*"}},
			Transport:    t,
			Requires:     m.Requires, Context: m.Context, Meta: m.Meta,
			Parent: m.Plugin.ID, parent: m,
		}
		content, _ := json.Marshal(member) // strings, numbers and maps of strings, which never fail
		member.Hash = hash(content, []byte(t.Cwd))
		out = append(out, member)
	}
	return out
}
