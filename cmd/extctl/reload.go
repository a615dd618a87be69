package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/nearest"
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
					return s.hintBridge(ctx, args[0], err)
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

// hintBridge adds what the catalog knows of a bridge that nobody answered for, or of those whose names are like it.
func (s *session) hintBridge(ctx context.Context, name string, err error) error {
	f, ok := errors.AsType[*failure](err)
	if !ok || f.code != exitUnavailable {
		return err
	}
	c, loadErr := s.catalog(ctx)
	if loadErr != nil {
		return err // which says enough
	}
	var names []string
	for _, h := range c.Hosts() {
		if h.Bridge == name {
			f.hint = "extctl hosts has what is known of it: " + clean(whatOf(h))
			return f
		}
		names = append(names, h.Bridge)
	}
	f.hint = "extctl hosts has the bridges that are known"
	if near := nearest.Words(name, names); len(near) > 0 {
		f.hint, f.data = "did you mean "+clean(orList(near))+"?", map[string]any{"nearest": near}
	}
	return f
}

// whatOf is a bridge's state and the reason for it.
func whatOf(h mesh.Host) string {
	what := hostState(h)
	if what == "-" {
		what = "it has never answered"
	}
	if h.Reason != "" {
		what += ": " + h.Reason
	}
	return what
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
