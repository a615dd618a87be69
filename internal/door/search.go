package door

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// The tools of the search mode. There are three to call with, because people approve tools by their names: to always
// allow reading is reasonable, to always allow everything is not.
const (
	toolSearch          = "search_tools"
	toolCallRead        = "call_read_tool"
	toolCall            = "call_tool"
	toolCallDestructive = "call_destructive_tool"
)

func isSearchTool(name string) bool {
	return slices.Contains([]string{toolSearch, toolCallRead, toolCall, toolCallDestructive}, name)
}

// Sizes of the search mode.
const (
	searchBytes   = 512 << 10 // ToolsAuto searches above it
	defaultHits   = 10
	maxHits       = 50
	maxHitSchemas = 64 << 10 // bytes of all schemas in a result
	hitText       = 300      // bytes of a description
	knownSearcher = 2000     // the number of tools up to which a client that searches by itself gets all of them
)

// searches decides whether a view is offered as search tools. Some tools more or less do not change the decision.
func (o ViewOptions) searches(v *view, before bool) bool {
	switch o.Tools {
	case ToolsAll:
		return false
	case ToolsSearch:
		return true
	}
	tools, size := o.SearchOver, searchBytes
	if before {
		tools, size = tools*9/10, size*9/10
	}
	return len(v.tools) > tools || len(v.modern.text) > size
}

// searchesFor decides for a client that has not got the search tools yet.
func (o ViewOptions) searchesFor(v *view, clientName string) bool {
	if o.Tools == ToolsAuto && clientName == "claude-code" && len(v.tools) <= knownSearcher {
		return false
	}
	return v.searching
}

// searchTools are the descriptors of the search mode.
const (
	searchDescriptor = `{"name":"` + toolSearch + `","description":"Find tools by what they do. Returns names, descriptions and arguments. An empty query lists the extensions. Call a tool that was found with the tool that its entry names.",` +
		`"inputSchema":{"type":"object","properties":{"query":{"type":"string","description":"what the tool should do, in a few words"},` +
		`"extension":{"type":"string","description":"only tools of this extension"},` +
		`"limit":{"type":"integer","minimum":1,"maximum":50,"description":"how many results, 10 by default"}},"required":["query"]},` +
		`"annotations":{"readOnlyHint":true,"openWorldHint":false}}`
	callSchema = `"inputSchema":{"type":"object","properties":{"name":{"type":"string","description":"the tool's name, from ` + toolSearch + `"},` +
		`"arguments":{"type":"object","description":"the tool's arguments"}},"required":["name"]}`
	callReadDescriptor        = `{"name":"` + toolCallRead + `","description":"Call a tool that only reads.",` + callSchema + `,"annotations":{"readOnlyHint":true}}`
	callDescriptor            = `{"name":"` + toolCall + `","description":"Call a tool that changes something, but destroys nothing.",` + callSchema + `,"annotations":{"readOnlyHint":false,"destructiveHint":false}}`
	callDestructiveDescriptor = `{"name":"` + toolCallDestructive + `","description":"Call a tool that may delete or overwrite something.",` + callSchema + `,"annotations":{"readOnlyHint":false,"destructiveHint":true}}`
)

var searchPages = sync.OnceValue(func() (pages struct{ all, readOnly *page }) {
	pages.all = &page{text: []byte(strings.Join([]string{callDestructiveDescriptor, callReadDescriptor, callDescriptor, searchDescriptor}, ","))}
	pages.readOnly = &page{text: []byte(callReadDescriptor + "," + searchDescriptor)}
	return pages
})

// searchPage is the list of tools of the search mode.
func searchPage(readOnly bool) *page {
	if readOnly {
		return searchPages().readOnly
	}
	return searchPages().all
}

// callWith is the search mode's tool with which an item is called. Without annotations the protocol takes a tool as
// destructive, and so is one of which nothing is known (nil).
func callWith(it *item) string {
	switch {
	case it == nil:
	case it.isReadOnly():
		return toolCallRead
	case it.hints.Destructive != nil && !*it.hints.Destructive:
		return toolCall
	}
	return toolCallDestructive
}

// callSearchTool answers a call of one of the search mode's tools.
func (c tools) callSearchTool(running *call, q *request, name string, args []byte) ([]byte, *rpc.Error) {
	if name == toolSearch {
		return c.searchTools(q, args)
	}
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	wrapper := &callee{name: name}
	if err := json.Unmarshal(objectOr(args), &p); err != nil || p.Name == "" {
		return misfit(wrapper, errors.New("name must be the name of a tool")).to(q), nil
	}
	t, err := c.resolve(q, p.Name)
	if err != nil {
		return newFailure(wrapper, rpc.CodeInvalidParams, rpc.RanNo, err.Message).to(q), nil
	}
	if callWith(t.item) != name {
		text := fmt.Sprintf("Call %s with %s instead of %s.", p.Name, callWith(t.item), name)
		return newFailure(t, rpc.CodeInvalidParams, rpc.RanNo, text, t.notRun()).to(q), nil
	}
	target, ok := asArguments(p.Arguments)
	if !ok {
		return misfit(t, errors.New("arguments must be an object")).to(q), nil
	}
	if t.item != nil {
		if wrong := t.item.checkArguments(objectOr(target)); wrong != nil {
			f := misfit(t, wrong)
			f.text += " The schema is " + clip(string(t.item.input), 4<<10)
			return f.to(q), nil
		}
	}
	return c.forward(running, q, t, target)
}

// searchTools answers a call of search_tools.
func (c tools) searchTools(q *request, args []byte) ([]byte, *rpc.Error) {
	var p struct {
		Query     string  `json:"query"`
		Extension string  `json:"extension"`
		Limit     float64 `json:"limit"` // some clients write all numbers as 10.0
	}
	if err := json.Unmarshal(objectOr(args), &p); err != nil || p.Limit < 0 || p.Limit > maxHits || p.Limit != math.Trunc(p.Limit) || len(p.Query) > 1000 {
		return misfit(&callee{name: toolSearch}, errors.New("query must be a text of at most 1000 bytes, and limit a number up to 50")).to(q), nil
	}
	if p.Limit == 0 {
		p.Limit = defaultHits
	}
	v := c.view.now.Load()
	if len(splitWords(p.Query)) == 0 && p.Extension == "" { // a wildcard, too
		return c.overview(q, v), nil
	}
	hits, total := v.find(p.Query, p.Extension, int(p.Limit))
	return c.searchResult(q, hits, total), nil
}

// foundTool is one hit in the structured result.
type foundTool struct {
	Name        string          `json:"name"`
	Extension   string          `json:"extension"`
	Description string          `json:"description"`
	CallWith    string          `json:"call_with"`
	InputSchema json.RawMessage `json:"input_schema"`
	Available   bool            `json:"available"`
}

func (c tools) searchResult(q *request, hits []*listedTool, total int) []byte {
	found, room := make([]foundTool, 0, len(hits)), maxHitSchemas
	var text strings.Builder
	fmt.Fprintf(&text, "%d of %d matching tools:\n", len(hits), total)
	for _, t := range hits {
		f := foundTool{
			Name: t.name, Extension: t.key.ID, Description: clip(t.tool.Description, hitText),
			CallWith: callWith(t.item), InputSchema: t.input, Available: c.isAvailable(t.key.ID),
		}
		if len(f.InputSchema) > room {
			f.InputSchema = wire.EmptySchema // the text has the arguments
		}
		room -= len(f.InputSchema)
		found = append(found, f)
		fmt.Fprintf(&text, "\n%s (call it with %s)\n%s\narguments: %s\n", f.Name, f.CallWith, f.Description, argumentsText(t.input))
		if !f.Available {
			text.WriteString("not available at the moment\n")
		}
	}
	return searchAnswer(q.era, text.String(), map[string]any{"tools": found, "total": total})
}

// overview lists the extensions for an empty query.
func (c tools) overview(q *request, v *view) []byte {
	count := map[string]int{}
	var ids []string
	for _, t := range v.tools {
		if count[t.key.ID]++; count[t.key.ID] == 1 {
			ids = append(ids, t.key.ID)
		}
	}
	slices.Sort(ids)
	var text strings.Builder
	fmt.Fprintf(&text, "%d tools of %d extensions:\n", len(v.tools), len(ids))
	for i, id := range ids {
		if text.Len() > 16<<10 {
			fmt.Fprintf(&text, "and %d more\n", len(ids)-i)
			break
		}
		fmt.Fprintf(&text, "%s: %d tools\n", id, count[id])
	}
	return searchAnswer(q.era, text.String(), map[string]any{"tools": []foundTool{}, "total": len(v.tools)})
}

func searchAnswer(era mcp.Era, text string, structured any) []byte {
	out, err := plainjson.Marshal(map[string]any{
		"content":           []map[string]any{{"type": "text", "text": text}},
		"structuredContent": structured,
	})
	if err != nil { // a schema is valid JSON, since it comes from the catalog
		return newFailure(&callee{name: toolSearch}, rpc.CodeInternal, rpc.RanNo, "The result cannot be encoded.").result(era)
	}
	return era.Complete(out)
}

func (c tools) isAvailable(id string) bool {
	b := c.door.mesh.Load()
	if b == nil {
		return false
	}
	e, ok := b.catalog.Get(id)
	return ok && e.State.Available
}

// argumentsText describes the arguments in one line: city: string (required), days: integer.
func argumentsText(schema json.RawMessage) string {
	var s struct {
		Properties json.RawMessage `json:"properties"`
		Required   []string        `json:"required"`
	}
	if json.Unmarshal(schema, &s) != nil || len(s.Properties) == 0 {
		return "none described"
	}
	var out []string
	members, _ := wire.Members(s.Properties)
	for _, m := range members[:min(len(members), 40)] {
		kind := "any"
		if at, ok := jsonrpc.Member(m.Value, "type"); ok {
			kind = string(bytes.Trim(at.In(m.Value), `"`))
		}
		text := m.Key + ": " + clip(kind, 60)
		if slices.Contains(s.Required, m.Key) {
			text += " (required)"
		}
		out = append(out, text)
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
