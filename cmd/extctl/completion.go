package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// completeTimeout limits how long a completion may take.
const completeTimeout = time.Second

// completeIDs completes the first argument with the ids in the catalog.
func (a *app) completeIDs(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []cobra.Completion
	a.complete(cmd, []string{wire.KindState}, func(c *mesh.Catalog) {
		for _, e := range c.All() {
			out = append(out, cobra.CompletionWithDesc(e.ID, string(e.State.State)))
		}
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeTools completes the first argument with the tools' names, and the others with the tool's arguments.
func (a *app) completeTools(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	directive := cobra.ShellCompDirectiveNoFileComp
	a.complete(cmd, nil, func(c *mesh.Catalog) {
		if len(args) == 0 {
			for _, t := range matching(c.All(), "") {
				out = append(out, cobra.CompletionWithDesc(t.Name, short(t.Description, 60)))
			}
			return
		}
		if _, t, ok := c.Tool(args[0]); ok {
			directive |= cobra.ShellCompDirectiveNoSpace
			for _, p := range properties(t.InputSchema) {
				out = append(out, cobra.CompletionWithDesc(p.name+"=", short(p.description, 60)))
			}
		}
	})
	return out, directive
}

// complete loads the catalog, or only some kinds of its documents, for f. Errors are dropped: a completion cannot show them.
func (a *app) complete(cmd *cobra.Command, kinds []string, f func(*mesh.Catalog)) {
	// cobra runs completions outside Execute, where the context may be nil.
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
		cmd.SetContext(ctx)
	}
	_ = a.withMesh(cmd, completeTimeout, func(ctx context.Context, s *session) error {
		c, err := mesh.LoadCatalog(ctx, s.nc, mesh.CatalogOptions{Prefix: string(s.prefix)}, kinds...)
		if err == nil {
			f(c)
		}
		return err
	})
}
