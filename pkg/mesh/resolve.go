package mesh

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/wire"
)

// NotFoundError means that no tool has this name. Nearest has similar registered names.
type NotFoundError struct {
	Name    string
	Nearest []string
}

// Error lists the similar names.
func (e *NotFoundError) Error() string {
	if len(e.Nearest) == 0 {
		return fmt.Sprintf("no tool is named %q", e.Name)
	}
	return fmt.Sprintf("no tool is named %q; the nearest are %s", e.Name, strings.Join(e.Nearest, ", "))
}

// AmbiguousError means that several tools have this name. Each of Candidates names one of them.
type AmbiguousError struct {
	Name       string
	Candidates []string
}

// Error lists the candidates.
func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("the name %q is claimed by several tools: %s", e.Name, strings.Join(e.Candidates, ", "))
}

// Resolve finds a tool by any of its names: the registered one, the base or the suffixed form, or <id>/<local name>. The
// error is *NotFoundError, with similar names, or *AmbiguousError, with the candidates.
func (c *Catalog) Resolve(name string) (Extension, *Tool, error) {
	if e, t, ok := c.Tool(name); ok {
		return e, t, nil
	}
	// An extension whose tools are not known (gated, failed, not started yet) may have this one: its answer, or the reason why
	// there is none, is better than an error that there is no such tool.
	if id, own, ok := strings.Cut(name, "/"); ok && own != "" {
		if e, ok := c.Get(id); ok && toolsUnknown(e) {
			return e, &Tool{Own: own, InputSchema: wire.EmptySchema}, nil
		}
	}
	names := c.nameForms()
	found := names.Lookup(name)
	switch len(found) {
	case 1:
		if e, t, ok := c.Tool(found[0].String()); ok {
			return e, t, nil
		}
	case 0:
		if e, own, ok := c.withoutTools(name); ok {
			return e, &Tool{Own: own, InputSchema: wire.EmptySchema}, nil
		}
		return Extension{}, nil, &NotFoundError{Name: name, Nearest: nearest(names, name)}
	default:
		e := &AmbiguousError{Name: name}
		for _, t := range found {
			e.Candidates = append(e.Candidates, t.Name)
		}
		return Extension{}, nil, e
	}
	return Extension{}, nil, &NotFoundError{Name: name} // it was removed between the two lookups
}

// nearest returns similar names.
func nearest(names *wire.Names, name string) (out []string) {
	for _, k := range wire.NearestKeys(names.Keys(), name) {
		out = append(out, names.Name(k))
	}
	return out
}

// toolsUnknown reports whether the catalog does not have the tools of e. A completed handshake has a hash, also of no tools,
// as that of a container of MCP servers.
func toolsUnknown(e Extension) bool {
	return len(e.Spec.Tools) == 0 && (e.Spec.HandshakeHash == "" ||
		slices.ContainsFunc(e.Spec.Diagnostics, func(d wire.Diagnostic) bool { return d.Code == "no_tools" })) // its server does not list them yet
}

// withoutTools returns the extension with unknown tools that a registered name may belong to: the one with the longest id, and of
// ids that are equal in a name (a.b, a_b) the first. The local name is a guess, because registered names cannot be parsed.
func (c *Catalog) withoutTools(name string) (best Extension, own string, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for id, e := range c.data.exts {
		if !toolsUnknown(e) || cmp.Or(cmp.Compare(len(best.ID), len(id)), cmp.Compare(id, best.ID)) > 0 {
			continue
		}
		if rest, found := strings.CutPrefix(name, wire.ToolName(id, "")); found && rest != "" {
			best, own, ok = e, rest, true
		}
	}
	return best, own, ok
}
