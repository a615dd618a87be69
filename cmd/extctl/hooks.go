package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// hookJSON is one hook of one extension.
type hookJSON struct {
	Name      string `json:"name"`
	Extension string `json:"extension"`
	Priority  int32  `json:"priority"`
	Available bool   `json:"available"`
}

func (a *app) hooksCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "hooks",
		Short: "List the hooks and the extensions that offer them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				c, err := s.catalog(ctx)
				if err != nil {
					return err
				}
				hooks := []hookJSON{}
				t := a.newTable("HOOK", "EXTENSION", "STATE")
				for _, e := range c.All() {
					for _, h := range e.Spec.Hooks {
						hooks = append(hooks, hookJSON{h, e.ID, e.Spec.Priority, e.State.Available})
					}
				}
				slices.SortStableFunc(hooks, func(a, b hookJSON) int { return strings.Compare(a.Name, b.Name) })
				if a.json {
					return a.printJSON(struct {
						header
						revisionJSON
						Hooks []hookJSON `json:"hooks"`
					}{revisionJSON: revisionOf(c), Hooks: hooks})
				}
				for _, h := range hooks {
					e, _ := c.Get(h.Extension)
					t.add(h.Name, h.Extension, string(e.State.State))
				}
				return t.print(a.stdout)
			})
		},
	}
}
