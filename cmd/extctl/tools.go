package main

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// toolJSON is one tool in the output of tools.
type toolJSON struct {
	Name        string          `json:"name"`
	Extension   string          `json:"extension"`
	Tool        string          `json:"tool"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Available   bool            `json:"available"`
}

func toolsCmd(a *app) *cobra.Command {
	var id, search string
	cmd := a.listVerb("tools [--ext ID] [--search TEXT]", "List the tools of all extensions", func(ctx context.Context, s *session) (listing, error) {
		c, all, err := s.extensions(ctx, id)
		if err != nil {
			return listing{}, err
		}
		tools := matching(all, search)
		return listing{revisionJSON: revisionOf(c), name: "tools", list: tools, empty: noTools(id, search),
			tables: func() []*terminal.Table { return []*terminal.Table{toolTable(a, c, tools)} },
			notes:  func() []string { return clashes(all) }}, nil
	})
	cmd.Flags().StringVar(&id, "ext", "", "only the tools of the extension `ID`")
	cmd.Flags().StringVar(&search, "search", "", "only tools with every word of `TEXT` in their name or description")
	if err := cmd.RegisterFlagCompletionFunc("ext", a.completeIDs); err != nil { // the flag is defined above
		panic(err)
	}
	return cmd
}

// noTools states that no tool was found.
func noTools(id, search string) string {
	text := "no tool"
	if search != "" {
		text += " matches " + strconv.Quote(search)
	}
	if id != "" {
		text += " in the extension " + id
	}
	if search == "" && id == "" {
		return "no extension has a tool; `extctl hosts` shows what bridges could not start and why"
	}
	return text
}

// extensions loads one extension, or all if id is empty.
func (s *session) extensions(ctx context.Context, id string) (*mesh.Catalog, []mesh.Extension, error) {
	if id != "" {
		c, e, err := s.extension(ctx, id)
		return c, []mesh.Extension{e}, err
	}
	c, err := s.load(ctx, mesh.CatalogOptions{NoSchemas: !s.json}) // the table has no schemas
	if err != nil {
		return nil, nil, err
	}
	s.warnIfOld(c.Age())
	return c, c.All(), nil
}

// matching are the tools with all words of search in their name or description, sorted by name.
func matching(all []mesh.Extension, search string) []toolJSON {
	words := strings.Fields(strings.ToLower(search))
	out := []toolJSON{}
	for _, e := range all {
		for _, t := range e.Spec.Tools {
			if len(words) > 0 {
				text := strings.ToLower(t.Name + " " + t.Own + " " + t.Description)
				if slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) }) {
					continue
				}
			}
			out = append(out, toolJSON{t.Name, e.ID, t.Own, t.Description, t.InputSchema, e.State.Available})
		}
	}
	slices.SortFunc(out, func(a, b toolJSON) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func toolTable(a *app, c *mesh.Catalog, tools []toolJSON) *terminal.Table {
	t := a.newTable("TOOL", "EXTENSION", "STATE", "DESCRIPTION")
	t.Limit = 80
	for _, tool := range tools {
		e, _ := c.Get(tool.Extension)
		t.Add(tool.Name, tool.Extension, string(e.State.State), terminal.FirstLine(ownDescription(tool.Extension, tool.Description)))
	}
	return t
}

// ownDescription is a tool's description without the prefix with the extension's id that it has in the catalog.
func ownDescription(id, description string) string {
	return strings.TrimPrefix(description, "[ext:"+id+"] ")
}

// clashes are notes about the tools that were renamed because of a name clash. In JSON, show has the diagnostics.
func clashes(all []mesh.Extension) (notes []string) {
	for _, e := range all {
		for _, d := range e.Spec.Diagnostics {
			if d.Code == "name_clash" {
				notes = append(notes, e.ID+": "+d.Message)
			}
		}
	}
	return notes
}
