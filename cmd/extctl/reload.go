package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/pkg/mesh"
)

func (a *app) reloadCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "reload BRIDGE",
		Short: "Have a bridge read its manifests again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withMesh(cmd, askTimeout, func(ctx context.Context, s *session) error {
				result, err := s.ask(ctx, s.prefix.Control(args[0]), "bridge "+args[0], "reload", nil)
				if err != nil {
					return err
				}
				if s.json {
					return s.printJSON(struct {
						header
						Bridges []controlJSON `json:"bridges"`
					}{Bridges: []controlJSON{{args[0], result}}})
				}
				var r struct{ Started, Replaced, Stopped []string }
				if err := json.Unmarshal(result, &r); err != nil {
					return fmt.Errorf("bridge %s: %w", args[0], err)
				}
				for _, part := range []struct {
					what string
					ids  []string
				}{{"started", r.Started}, {"replaced", r.Replaced}, {"stopped", r.Stopped}} {
					if len(part.ids) > 0 {
						fmt.Fprintf(s.stdout, "%s: %s\n", part.what, clean(strings.Join(part.ids, ", ")))
					}
				}
				return nil
			})
		},
		ValidArgsFunction: a.completeBridges,
	}
}

// completeBridges offers the names of the bridges that have reported.
func (a *app) completeBridges(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	if len(args) == 0 {
		a.complete(cmd, func(c *mesh.Catalog) {
			for _, h := range c.Hosts() {
				out = append(out, cobra.CompletionWithDesc(h.Bridge, h.Host))
			}
		})
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
