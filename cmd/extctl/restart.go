package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// restartOptions are the flags of restart.
type restartOptions struct {
	bridgeFlags
	atOnce, wait bool
	each         time.Duration // the time limit of one instance
}

// instanceTimeout is how long one instance may take to be ready again: the calls in flight, and its start.
const instanceTimeout = 90 * time.Second

func restartCmd(a *app) *cobra.Command {
	var o restartOptions
	cmd := &cobra.Command{
		Use:   "restart ID",
		Short: "Restart an extension's instances, one after the other",
		Long: `Restart an extension's instances, one after the other: each finishes its calls, restarts, and must be ready before the
next one follows, so that no call is lost. Instances that are not ready come first. If an instance does not come back, the
command fails and leaves the others alone. If the extension has one instance, or with --at-once, all restart immediately.

The command ends when the catalog shows the restart, so that a wait or a call that follows does not find the state from
before it; with --wait, when the extension is ready and its tools are known.`,
		Example: "  extctl restart weather\n  extctl restart weather --instance web-1/2\n  extctl restart weather --bridge web-1 --at-once",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.each <= 0 {
				return usage("--instance-timeout %v: want a positive duration", o.each)
			}
			return a.withMesh(cmd, 0, func(ctx context.Context, s *session) error {
				return restart(ctx, s, o, args[0])
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&o.atOnce, "at-once", false, "restart all instances at the same time; calls fail until one is ready")
	cmd.Flags().BoolVar(&o.wait, "wait", false, "wait until the extension is ready again, with its tools")
	cmd.Flags().DurationVar(&o.each, "instance-timeout", instanceTimeout, "how long one instance may take to be ready again: `DURATION`, e.g. 5m")
	return cmd
}

func restart(ctx context.Context, s *session, o restartOptions, id string) error {
	looking, cancel := limited(ctx, s, requestTimeout)
	defer cancel()
	_, e, err := s.extension(looking, id)
	if err != nil {
		return err
	}
	if o.bridgeFlags, err = o.resolve(looking, s, e); err != nil {
		return err
	}
	bridges, err := o.bridgesOf(e)
	if err != nil {
		return err
	}
	if !o.atOnce {
		spots, failed, err := spotsOn(looking, s, bridges, id)
		if err != nil {
			return err
		}
		spots = slices.DeleteFunc(spots, func(p spot) bool { return o.instance != "" && p.instance != o.instance })
		if len(spots) == 0 {
			return fail(exitNotFound, "the bridges of %s no longer run the instance", id)
		}
		if len(spots) > 1 && !eachAlone(spots) || len(e.State.Instances) > 1 {
			return cmp.Or(newRolling(s, e, o, failed).run(ctx, spots), awaitReadyIf(ctx, s, o.wait, id))
		}
	}
	return restartAtOnce(ctx, s, o, id)
}

// eachAlone reports whether no extension has two instances: then each is the last one of its extension.
func eachAlone(spots []spot) bool {
	seen := map[string]bool{}
	for _, p := range spots {
		if seen[p.id] {
			return false
		}
		seen[p.id] = true
	}
	return true
}

// limited is a context for requests that are answered at once, also if the command as a whole may take long. The user's
// --timeout is a limit of the whole command.
func limited(ctx context.Context, s *session, limit time.Duration) (context.Context, context.CancelFunc) {
	if s.timeout > 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

func awaitReadyIf(ctx context.Context, s *session, wait bool, id string) error {
	if !wait {
		return nil
	}
	ctx, cancel := limited(ctx, s, waitTimeout)
	defer cancel()
	return awaitState(ctx, s, id, string(heartbeat.Ready))
}

// restartAtOnce restarts all selected instances at the same time.
func restartAtOnce(ctx context.Context, s *session, o restartOptions, id string) error {
	asking, cancel := limited(ctx, s, requestTimeout)
	defer cancel()
	before, _ := instancesOf(asking, s, id) // an error is reported by operate, which reads the catalog, too
	answers, failed, err := operate[operated](asking, s, o.bridgeFlags, "restart", id, 0, 0)
	if err != nil {
		return err
	}
	printed := printOperated(s, answers, failed, "restarting")
	pending := map[string]wire.InstanceState{}
	for _, a := range answers {
		for _, name := range a.parsed.Instances {
			if i, ok := before[name]; ok && i.State != heartbeat.Gated {
				pending[name] = i
			}
		}
	}
	awaitShown(ctx, s, id, pending, ranSince)
	return cmp.Or(awaitReadyIf(ctx, s, o.wait, id), printed)
}

// instancesOf reads the instances of an extension from the catalog, by their names.
func instancesOf(ctx context.Context, s *session, id string) (map[string]wire.InstanceState, error) {
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

// awaitShown waits until the catalog shows all instances in pending as shown wants, which compares their states before and
// now. If it does not in time, for example because no registry is running, that is printed: the restarts have been
// requested.
func awaitShown(ctx context.Context, s *session, id string, pending map[string]wire.InstanceState, shown func(was, is wire.InstanceState) bool) bool {
	limited, cancel := context.WithTimeout(ctx, shownTimeout)
	defer cancel()
	tick := time.NewTicker(shownPoll)
	defer tick.Stop()
	for {
		now, err := instancesOf(limited, s, id)
		maps.DeleteFunc(pending, func(name string, was wire.InstanceState) bool {
			return err == nil && shown(was, now[name])
		})
		if len(pending) == 0 {
			return true
		}
		select {
		case <-tick.C:
		case <-limited.Done():
			if ctx.Err() == nil {
				s.note("the catalog does not show the restart yet")
			}
			return false
		}
	}
}

// ranSince reports whether the catalog shows another state, or another run, of an instance than before.
func ranSince(was, is wire.InstanceState) bool {
	return is.State != was.State || is.Restarts != was.Restarts || !is.Since.Equal(was.Since)
}

// otherReady reports whether the catalog shows another ready instance of the extension than the one with this name.
func otherReady(e mesh.Extension, instance string) bool {
	return slices.ContainsFunc(e.State.Instances, func(i wire.InstanceState) bool {
		return i.Instance != instance && i.State == heartbeat.Ready
	})
}
