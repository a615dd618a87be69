package door

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/mesh/schema"
)

// The sizes from which on an item is cut, since one very large tool must not make a client reject the whole list.
const (
	maxItem        = 256 << 10
	maxDescription = 16 << 10
)

// item is a tool as it is listed, without its name.
type item struct {
	named
	native  bool   // the extension's results are not MCP results
	modern  []byte // the members after the name, beginning with a comma
	legacy  []byte // the same for clients of the legacy era
	hints   mcp.Annotations
	tool    *mesh.Tool
	input   json.RawMessage // the schema as it is listed
	changes []string        // what differs from the extension's descriptor
	checks  *checks
}

func (it *item) isReadOnly() bool { return it.hints.ReadOnly != nil && *it.hints.ReadOnly }

// isSafe reports that a call may be repeated without a check.
func (it *item) isSafe() bool {
	return it.isReadOnly() || it.hints.Idempotent != nil && *it.hints.Idempotent
}

// checks compiles the schema of a tool when its arguments are checked for the first time.
type checks struct {
	once  sync.Once
	check func(json.RawMessage) error // nil: cannot be checked
}

// checkArguments returns what is wrong with args, or nil if that cannot be determined here.
func (it *item) checkArguments(args json.RawMessage) error {
	it.checks.once.Do(func() {
		if check, err := schema.Compile(it.tool.InputSchema); err == nil {
			it.checks.check = check
		}
	})
	if it.checks.check == nil {
		return nil
	}
	return it.checks.check(args)
}

// hidden is a tool that is not listed, and why.
type hidden struct {
	key    wire.ToolKey
	reason string
}

// rendered are the items of one extension, which stay the same as long as its spec does.
type rendered struct {
	spec   *mesh.Spec
	items  []*item
	hidden []hidden
}

// renderCache has the items of all extensions by id.
type renderCache map[string]*rendered

// update renders the extensions whose specs have changed, and logs what was changed in their descriptors.
func (c *renderCache) update(extensions []mesh.Extension, logger *slog.Logger) {
	old := *c
	*c = make(renderCache, len(extensions))
	for _, e := range extensions {
		r := old[e.ID]
		if r == nil || r.spec != e.Spec {
			r = renderSpec(e.Spec)
			r.log(logger)
		}
		(*c)[e.ID] = r
	}
}

func renderSpec(s *mesh.Spec) *rendered {
	r := &rendered{spec: s}
	for i := range s.Tools {
		it, reason := renderTool(s, &s.Tools[i])
		if it == nil {
			r.hidden = append(r.hidden, hidden{wire.ToolKey{ID: s.ID, Tool: s.Tools[i].Own}, reason})
			continue
		}
		r.items = append(r.items, it)
	}
	return r
}

func (r *rendered) log(logger *slog.Logger) {
	for _, h := range r.hidden {
		logger.Warn("a tool is not listed", "extension", h.key.ID, "tool", h.key.Tool, "reason", h.reason)
	}
	for _, it := range r.items {
		for _, change := range it.changes {
			logger.Info("a tool's descriptor was changed for clients", "extension", it.key.ID, "tool", it.key.Tool, "change", change)
		}
	}
}

// renderTool renders one tool. It returns nil and the reason if the tool cannot be listed.
func renderTool(s *mesh.Spec, t *mesh.Tool) (_ *item, reason string) {
	it := &item{
		named: named{wire.ToolKey{ID: s.ID, Tool: t.Own}, t.Name}, tool: t,
		native: s.Dialect != "mcp", checks: new(checks),
	}
	fit, change, ok := mcp.FitInputSchema(t.InputSchema)
	if !ok {
		return nil, change
	}
	it.input = fit
	it.note(change)
	if mcp.NeedsTask(t.Member("execution")) {
		return nil, "it can only run as a task, which is not supported"
	}
	_ = json.Unmarshal(t.Member("annotations"), &it.hints) // malformed annotations are left out below
	it.render(t.Description)
	if len(it.modern) > maxItem {
		it.shrink()
	}
	return it, ""
}

func (it *item) note(change string) {
	if change != "" {
		it.changes = append(it.changes, change)
	}
}

// render sets the listed bytes: title, description and inputSchema first, then the other members in their order.
func (it *item) render(description string) {
	var head, rest, restLegacy []byte
	for _, m := range it.tool.Extra {
		modern, legacy := mcp.FitMember(m.Key, m.Value)
		value := m.Value
		if m.Key == "outputSchema" && modern {
			var change string
			value, change = mcp.FitProperties(value)
			it.note(change)
			if why := outputFault(value); why != nil {
				it.note(fmt.Sprintf("the member outputSchema was left out, because some clients would reject the whole list: %v", why))
				continue
			}
		}
		text := wire.AppendMember(nil, m.Key, mcp.OneLine(value))
		switch {
		case !modern:
			it.note("the member " + m.Key + " was left out: it is malformed")
		case m.Key == "title":
			head = append(head, text...)
		default:
			rest = append(rest, text...)
			if legacy {
				restLegacy = append(restLegacy, text...)
			}
		}
	}
	if description != "" {
		head = wire.AppendMember(head, "description", mcp.Quote(description))
	}
	head = wire.AppendMember(head, "inputSchema", mcp.OneLine(it.input))
	it.modern = slices.Concat(head, rest)
	it.legacy = it.modern
	if len(rest) != len(restLegacy) {
		it.legacy = slices.Concat(head, restLegacy)
	}
}

// outputFault returns why clients cannot compile the schema of a result.
func outputFault(text json.RawMessage) error {
	if err := schema.Fault(text); err != nil {
		return err
	}
	if pattern, ok := mcp.ForeignPattern(text); ok {
		return fmt.Errorf("%q is not a regular expression of JavaScript", clip(pattern, 100))
	}
	return nil
}

// shrink replaces what makes an item too large.
func (it *item) shrink() {
	it.note("it was larger than 256 KiB: its schema was replaced and its description cut")
	it.input = wire.EmptySchema
	full := it.tool
	kept := *full
	kept.Extra = slices.DeleteFunc(slices.Clone(full.Extra), func(m wire.Member) bool { return len(m.Value) > maxDescription })
	it.tool = &kept
	it.render(clip(full.Description, maxDescription))
	it.tool = full
}

// clip shortens text to n bytes, at the boundary of a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}
