package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// filter selects extensions or bridges of a list; its zero value selects all.
type filter struct {
	states, bridges []string
	problems        bool
}

var listedStates = []string{"ready", "spawning", "restarting", "draining", "failed", "gated", "lost", "shutdown"}

func (f *filter) add(cmd *cobra.Command, what, problems string) {
	cmd.Flags().StringSliceVar(&f.states, "state", nil, "only "+what+" in the `STATE`; several are separated by commas")
	cmd.Flags().StringSliceVar(&f.bridges, "bridge", nil, "only "+what+" on the bridge `NAME`; several are separated by commas")
	cmd.Flags().BoolVar(&f.problems, "problems", false, "only "+what+" with problems: "+problems)
	cmd.PreRunE = func(*cobra.Command, []string) error { return f.check() }
}

// set reports whether the filter selects only a part.
func (f *filter) set() bool { return len(f.states)+len(f.bridges) > 0 || f.problems }

func (f *filter) check() error {
	for _, s := range f.states {
		if !slices.Contains(listedStates, s) {
			return usage("--state %q: want %s", s, words.Or(listedStates))
		}
	}
	return nil
}

// checkBridges fails for a bridge that the catalog does not have: an empty list would look as if nothing were wrong there.
func (f *filter) checkBridges(ctx context.Context, s *session) error {
	if len(f.bridges) == 0 {
		return nil
	}
	c, err := s.catalog(ctx, wire.KindHost)
	if err != nil {
		return err
	}
	return f.knownBridges(c.Hosts())
}

func (f *filter) knownBridges(hosts []mesh.Host) error {
	var known []string
	for _, h := range hosts {
		known = append(known, h.Bridge)
	}
	for _, b := range f.bridges {
		if slices.Contains(known, b) {
			continue
		}
		e := fail(exitNotFound, "there is no bridge %q", b)
		e.hint = "`extctl hosts` lists the bridges"
		e.suggest(b, known)
		return e
	}
	return nil
}

func (f *filter) hasState(s heartbeat.State) bool {
	return len(f.states) == 0 || slices.Contains(f.states, string(s))
}

// extension reports whether the filter selects an extension: one with an instance on one of the bridges, in one of the
// states, which is that of the extension or, with bridges, of an instance there.
func (f *filter) extension(j health.Extension) bool {
	if f.problems && j.Level() == "" {
		return false
	}
	if len(f.bridges) == 0 {
		return f.hasState(j.State)
	}
	return slices.ContainsFunc(j.Instances, func(i wire.InstanceState) bool {
		return slices.Contains(f.bridges, i.Bridge) && f.hasState(i.State)
	})
}

func (f *filter) host(h wire.Host) bool {
	return f.hasState(h.State) && (len(f.bridges) == 0 || slices.Contains(f.bridges, h.Bridge)) && (!f.problems || hostTrouble(h))
}

// hostTrouble reports whether a bridge is lost or has problems.
func hostTrouble(h wire.Host) bool {
	return h.State == heartbeat.Lost || len(h.Problems)+h.ProblemsLeftOut > 0
}
