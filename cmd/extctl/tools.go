package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

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

func (a *app) toolsCmd() *cobra.Command {
	var ext, search string
	cmd := &cobra.Command{
		Use:   "tools [--ext ID] [--search TEXT]",
		Short: "List the tools of all extensions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				c, err := s.catalog(ctx)
				if err != nil {
					return err
				}
				all := c.All()
				if ext != "" {
					e, err := extension(c, ext)
					if err != nil {
						return err
					}
					all = []mesh.Extension{e}
				}
				if err := a.printTools(c, matching(all, search)); err != nil {
					return err
				}
				a.printClashes(all)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&ext, "ext", "", "only the tools of the extension `ID`")
	cmd.Flags().StringVar(&search, "search", "", "only tools with every word of `TEXT` in their name or description")
	if err := cmd.RegisterFlagCompletionFunc("ext", a.completeIDs); err != nil { // the flag is defined above
		panic(err)
	}
	return cmd
}

// matching are the tools with all words of search in their name or description, sorted by name.
func matching(all []mesh.Extension, search string) []toolJSON {
	words := strings.Fields(strings.ToLower(search))
	out := []toolJSON{}
	for _, e := range all {
		for _, t := range e.Spec.Tools {
			text := strings.ToLower(t.Name + " " + t.Own + " " + t.Description)
			if slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) }) {
				continue
			}
			out = append(out, toolJSON{t.Name, e.ID, t.Own, t.Description, t.InputSchema, e.State.Available})
		}
	}
	slices.SortFunc(out, func(a, b toolJSON) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (a *app) printTools(c *mesh.Catalog, tools []toolJSON) error {
	if a.json {
		return a.printJSON(struct {
			header
			revisionJSON
			Tools []toolJSON `json:"tools"`
		}{revisionJSON: revisionOf(c), Tools: tools})
	}
	t := a.newTable("TOOL", "EXTENSION", "STATE", "DESCRIPTION")
	for _, tool := range tools {
		e, _ := c.Get(tool.Extension)
		t.add(tool.Name, tool.Extension, string(e.State.State),
			short(strings.TrimPrefix(tool.Description, "[ext:"+tool.Extension+"] "), 80))
	}
	return t.print(a.stdout)
}

// printClashes prints, after the list, the tools that were renamed because of a name clash.
func (a *app) printClashes(all []mesh.Extension) {
	if a.json { // show has the diagnostics
		return
	}
	for _, e := range all {
		for _, d := range e.Spec.Diagnostics {
			if d.Code == "name_clash" {
				fmt.Fprintf(a.stderr, "%s: %s\n", clean(e.ID), clean(d.Message))
			}
		}
	}
}
