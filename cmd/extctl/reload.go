package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func reloadCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "reload [BRIDGE…]",
		Short: "Make bridges reread their configuration and manifests: all bridges, or those named",
		Long: `Make bridges reread their configuration and manifests, and start, replace and stop extensions accordingly. Without an
argument, all bridges of the mesh do. The output says what changed on each bridge, and where it looks for extensions.`,
		Example: "  extctl reload\n  extctl reload web-1 web-2",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkBridges(args); err != nil {
				return err
			}
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				return reload(ctx, s, slices.Compact(slices.Sorted(slices.Values(args))))
			})
		},
		ValidArgsFunction: a.completeBridges,
	}
}

func reload(ctx context.Context, s *session, bridges []string) error {
	if len(bridges) == 0 {
		running, lost, err := runningBridges(ctx, s)
		if err != nil {
			return err
		}
		bridges = running
		for _, name := range lost {
			s.note("%s is lost; it reads its manifests when it starts", terminal.Clean(name))
		}
	}
	before, _ := s.load(ctx, mesh.CatalogOptions{}, wire.KindState) // without it, the catalog is not waited for
	answers, failed, err := askBridges[bridge.Reloaded](ctx, s, bridges, "reload", nil)
	if err != nil && len(bridges) == 1 {
		return s.hintBridge(ctx, bridges[0], err)
	}
	if err != nil {
		return err
	}
	for n := range failed {
		failed[n] = s.failureOf(failed[n].Bridge, s.hintBridge(ctx, failed[n].Bridge, failed[n].err))
	}
	awaitReloaded(ctx, s, before, answers)
	if s.json {
		return cmp.Or(interrupted(ctx), printBridges(s, controls(answers), failed))
	}
	for _, a := range answers {
		fmt.Fprintf(s.stdout, "%s: %s\n", terminal.Clean(a.Bridge), terminal.Clean(reloadedText(a.parsed)))
		if a.parsed.Problems > 0 {
			s.note("extctl hosts lists the problems of %s", terminal.Clean(a.Bridge))
		}
	}
	return cmp.Or(interrupted(ctx), failed.report(s.app))
}

// awaitReloaded waits until the catalog shows none of the instances as ready that the bridges have replaced or stopped, so that the
// next command finds the new ones.
func awaitReloaded(ctx context.Context, s *session, before *mesh.Catalog, answers []answer[bridge.Reloaded]) {
	old := map[string]bool{}
	for _, a := range answers {
		for _, id := range slices.Concat(a.parsed.Replaced, a.parsed.Stopped) {
			if before == nil {
				break
			}
			for _, e := range before.All() {
				for _, i := range e.State.Instances {
					if e.ID == id && i.Bridge == a.Bridge && i.State == heartbeat.Ready {
						old[i.Instance] = true
					}
				}
			}
		}
	}
	if len(old) > 0 {
		awaitDraining(ctx, s, "", func(i wire.InstanceState) bool { return old[i.Instance] })
	}
}

// runningBridges are the bridges in the catalog, and those that are lost.
func runningBridges(ctx context.Context, s *session) (running, lost []string, err error) {
	c, err := s.catalog(ctx, wire.KindHost)
	if err != nil {
		return nil, nil, err
	}
	for _, h := range c.Hosts() {
		if h.State == heartbeat.Lost {
			lost = append(lost, h.Bridge)
		} else {
			running = append(running, h.Bridge)
		}
	}
	if len(running) == 0 {
		return nil, nil, fail(exitUnavailable, "no bridge is running").
			with("extctl up starts one; extctl hosts lists those that were there", nil)
	}
	return running, lost, nil
}

// reloadedText describes what a reload has changed.
func reloadedText(r bridge.Reloaded) string {
	var parts []string
	for _, part := range []struct {
		what string
		ids  []string
	}{{"started", r.Started}, {"replaced", r.Replaced}, {"stopped", r.Stopped}} {
		if len(part.ids) > 0 {
			parts = append(parts, part.what+" "+strings.Join(part.ids, ", "))
		}
	}
	text := cmp.Or(strings.Join(parts, "; "), "nothing changed")
	switch {
	case r.SearchPaths == nil: // a bridge of an older version
		return text
	case len(r.SearchPaths) == 0:
		return text + "; it runs no extensions: extensions.enabled is false in its extensions.yaml"
	}
	return fmt.Sprintf("%s (%s, %s); it looks in %s", text, words.Plural(r.Extensions, "extension"), words.Plural(r.Problems, "problem"), strings.Join(r.SearchPaths, ", "))
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
			f.hint = "its last state in `extctl hosts` is " + terminal.Clean(whatOf(h))
			return f
		}
		names = append(names, h.Bridge)
	}
	f.hint = "`extctl hosts` lists the bridges"
	f.suggest(name, names)
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

// completeBridges completes arguments with the names of the bridges in the catalog that are not among args.
func (a *app) completeBridges(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	a.complete(cmd, []string{wire.KindHost}, func(c *mesh.Catalog) {
		for _, h := range c.Hosts() {
			if !slices.Contains(args, h.Bridge) {
				out = append(out, cobra.CompletionWithDesc(h.Bridge, terminal.Short(h.Host, 60)))
			}
		}
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}
