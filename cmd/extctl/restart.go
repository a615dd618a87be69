package main

import (
	"cmp"
	"context"
	"maps"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func restartCmd(a *app) *cobra.Command {
	var f bridgeFlags
	var wait bool
	cmd := &cobra.Command{
		Use:   "restart ID",
		Short: "Restart an extension's instances",
		Long: `Restart an extension's instances. The command ends when the catalog shows the restart, so that a wait or a call that
follows does not find the state from before it; with --wait, when the extension is ready again (default timeout: one
minute).`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			limit := requestTimeout
			if wait {
				limit = waitTimeout
			}
			return a.withMesh(cmd, limit, func(ctx context.Context, s *session) error {
				return s.restart(ctx, f, args[0], wait)
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the extension is ready again")
	return cmd
}

func (s *session) restart(ctx context.Context, f bridgeFlags, id string, wait bool) error {
	before, _ := s.instancesOf(ctx, id) // an error is reported by operate, which reads the catalog, too
	answers, failed, err := operate[operated](ctx, s, f, "restart", id, 0, 0)
	if err != nil {
		return err
	}
	printed := s.printOperated(answers, failed, "restarting")
	s.awaitShown(ctx, id, before, answers)
	if wait {
		if err := s.awaitState(ctx, id, string(heartbeat.Ready)); err != nil {
			return err
		}
	}
	return cmp.Or(printed, failed.exit())
}

// instancesOf reads the instances of an extension from the catalog, by their names.
func (s *session) instancesOf(ctx context.Context, id string) (map[string]wire.InstanceState, error) {
	c, err := s.oneExtension(ctx, id)
	if err != nil {
		return nil, err
	}
	out := map[string]wire.InstanceState{}
	if e, ok := c.Get(id); ok && e.State != nil {
		for _, i := range e.State.Instances {
			out[i.Instance] = i
		}
	}
	return out, nil
}

// How long restart waits until the catalog shows it, and how often it looks.
const (
	shownTimeout = 5 * time.Second
	shownPoll    = 50 * time.Millisecond
)

// awaitShown waits until the catalog shows other states, or other runs, of the restarted instances than before. If it does
// not in time, for example because no registry is running, that is printed: the restarts have been requested.
func (s *session) awaitShown(ctx context.Context, id string, before map[string]wire.InstanceState, answers []answer[operated]) {
	pending := map[string]wire.InstanceState{}
	for _, a := range answers {
		for _, name := range a.parsed.Instances {
			if i, ok := before[name]; ok && i.State != heartbeat.Gated {
				pending[name] = i
			}
		}
	}
	limited, cancel := context.WithTimeout(ctx, shownTimeout)
	defer cancel()
	tick := time.NewTicker(shownPoll)
	defer tick.Stop()
	for len(pending) > 0 {
		now, err := s.instancesOf(limited, id)
		maps.DeleteFunc(pending, func(name string, was wire.InstanceState) bool {
			is := now[name]
			return err == nil && (is.State != was.State || is.Restarts != was.Restarts || !is.Since.Equal(was.Since))
		})
		select {
		case <-tick.C:
		case <-limited.Done():
			if ctx.Err() == nil {
				s.note("the catalog does not show the restart yet")
			}
			return
		}
	}
}
