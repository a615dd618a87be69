package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func reloadCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "reload BRIDGE",
		Short: "Make a bridge reread its configuration and manifests",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wire.CheckID(args[0], false); err != nil { // it becomes part of a subject
				return &failure{code: exitInvalidID, err: fmt.Errorf("a bridge's name is written like an id: %w", err)}
			}
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				result, err := s.request(ctx, s.prefix.Control(args[0]), "bridge "+args[0], "reload", nil)
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

// hintBridge adds a hint to the error of a bridge without a subscriber: the bridge's state in the catalog, or bridges
// with similar names.
func (s *session) hintBridge(ctx context.Context, name string, err error) error {
	f, ok := errors.AsType[*failure](err)
	if !ok || f.code != exitUnavailable {
		return err
	}
	c, loadErr := s.catalog(ctx, wire.KindHost)
	if loadErr != nil {
		return err // without a hint
	}
	var names []string
	for _, h := range c.Hosts() {
		if h.Bridge == name {
			f.hint = "its last state in `extctl hosts` is " + clean(whatOf(h))
			return f
		}
		names = append(names, h.Bridge)
	}
	f.hint = "`extctl hosts` lists the bridges"
	if near := nearest.Words(name, names); len(near) > 0 {
		f.hint, f.data = "did you mean "+clean(orList(near))+"?", map[string]any{"nearest": near}
	}
	return f
}

// whatOf is a bridge's state and the reason for it.
func whatOf(h wire.Host) string {
	what := hostState(h)
	if what == "-" {
		what = "unknown (it has never replied to the registry)"
	}
	if h.Reason != "" {
		what += ": " + h.Reason
	}
	return what
}

// completeBridges completes the first argument with the names of the bridges in the catalog.
func (a *app) completeBridges(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	if len(args) == 0 {
		a.complete(cmd, []string{wire.KindHost}, func(c *mesh.Catalog) {
			for _, h := range c.Hosts() {
				out = append(out, cobra.CompletionWithDesc(h.Bridge, h.Host))
			}
		})
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
