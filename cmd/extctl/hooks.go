package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// hookJSON is one hook of one extension.
type hookJSON struct {
	Name      string `json:"name"`
	Extension string `json:"extension"`
	Priority  int32  `json:"priority"`
	Available bool   `json:"available"`
}

func hooksCmd(a *app) *cobra.Command {
	return a.catalogVerb("hooks", "List the hooks and the extensions that offer them", []string{wire.KindSpec, wire.KindState}, func(c *mesh.Catalog) listing {
		hooks := []hookJSON{}
		for _, e := range c.All() {
			for _, h := range e.Spec.Hooks {
				hooks = append(hooks, hookJSON{h, e.ID, e.Spec.Priority, e.State.Available})
			}
		}
		slices.SortStableFunc(hooks, func(a, b hookJSON) int { return strings.Compare(a.Name, b.Name) })
		return listing{name: "hooks", list: hooks, empty: "no extension offers a hook", tables: func() []*terminal.Table {
			t := a.newTable("HOOK", "EXTENSION", "STATE")
			for _, h := range hooks {
				e, _ := c.Get(h.Extension)
				t.Add(h.Name, h.Extension, string(e.State.State))
			}
			return []*terminal.Table{t}
		}}
	})
}
