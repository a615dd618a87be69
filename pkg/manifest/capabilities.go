package manifest

import (
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/nearest"
)

// capabilities reads [capabilities]; the syntax of tool names depends on the transport's dialect.
func (t *table) capabilities(d Dialect) Capabilities {
	t = t.table("capabilities")
	c := Capabilities{
		Tools:     t.names("tools", toolRule(d)),
		Hooks:     t.names("hooks", plainRule),
		Channels:  t.names("channels", plainRule),
		Providers: t.names("providers", plainRule),
	}
	for i, h := range c.Hooks {
		if capabilitySyntax.MatchString(h) && !slices.Contains(hooks, h) {
			hint := "agents fire only " + strings.Join(hooks, ", ")
			if near, ok := nearest.Word(h, hooks); ok {
				hint = "did you mean " + near + "?"
			}
			t.Warn(document.Element(t.Key("hooks"), i), "%s is not a hook that agents fire; %s", document.Show(h), hint)
		}
	}
	t.Unknown(document.Error)
	return c
}

// nameRule returns what is wrong with a name in a list of n, or "".
type nameRule func(name string, n int) string

func plainRule(name string, _ int) string {
	switch {
	case !capabilitySyntax.MatchString(name):
		return `want a lower-case letter, then lower-case letters, digits or "_"`
	case len(name) > MaxID:
		return "it is longer than 64 bytes"
	}
	return ""
}

func toolRule(d Dialect) nameRule {
	if d == MCP {
		return mcpToolRule
	}
	return func(name string, n int) string {
		wrong := plainRule(name, n)
		if wrong != "" && (name == "*" || mcpToolSyntax().MatchString(name)) {
			wrong += `; for an MCP server's tools set transport.dialect = "mcp"`
		}
		return wrong
	}
}

func mcpToolRule(name string, n int) string {
	switch {
	case name == "*" && n > 1:
		return `it means every tool the server offers and must be the only entry: ["*"]`
	case name != "*" && !mcpToolSyntax().MatchString(name):
		return `want 1 to 128 of A-Z, a-z, 0-9, "_", "-" and "."`
	}
	return ""
}

// maxNames is the number of names in a list that registries accept.
const maxNames = 1000

// names reads a list of distinct names that follow the rule.
func (t *table) names(key string, rule nameRule) []string {
	list, skip, _ := t.Strs(key)
	if len(list) > maxNames {
		t.Fault(t.Key(key), "has %d names; want at most %d", len(list), maxNames)
	}
	first := make(map[string]int, len(list))
	for i, name := range list {
		at := document.Element(t.Key(key), i)
		if skip(i) {
			continue
		}
		if wrong := rule(name, len(list)); wrong != "" {
			t.Fault(at, "%s is not a legal name here; %s", document.Show(name), wrong)
		} else if j, dup := first[name]; dup {
			t.Fault(at, "%s is in the list already, at index %d; want each name once", document.Show(name), j)
		} else {
			first[name] = i
		}
	}
	return list
}

// container checks that the extension offers something: a transport and capabilities, or only MCP servers.
func (t *table) container(m *Manifest) {
	capable := !m.Capabilities.empty()
	switch {
	case t.Has("transport"):
		if !capable && !t.brokenCapabilities() {
			t.Fault("capabilities", `nothing is offered; want at least one name in tools, hooks, channels or providers, such as tools = ["greet"]`)
		}
	case capable:
		t.Fault("transport", `missing; want [transport] with type = "stdio", "nats" or "http", to reach what [capabilities] lists`)
	case len(m.MCPServers) == 0 && !t.listsServers():
		t.Fault("transport", `missing; want [transport] with type = "stdio", "nats" or "http", or MCP servers in [mcp_servers.<name>] or .mcp.json`)
	}
}

// brokenCapabilities reports whether [capabilities] contains a value of a wrong type. That was reported, so an empty
// result is not reported as well.
func (t *table) brokenCapabilities() bool {
	m, ok := t.Raw("capabilities").(map[string]any)
	if !ok {
		return t.Has("capabilities")
	}
	for _, key := range []string{"tools", "hooks", "channels", "providers"} {
		if _, list := m[key].([]any); m[key] != nil && !list {
			return true
		}
	}
	return false
}

// listsServers reports whether [mcp_servers] contains anything, valid or not.
func (t *table) listsServers() bool {
	m, ok := t.Raw("mcp_servers").(map[string]any)
	return len(m) > 0 || !ok && t.Has("mcp_servers")
}
