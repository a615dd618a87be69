package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// waitTimeout is the default timeout of wait.
const waitTimeout = time.Minute

// gone is the value of --for that waits until the extension is not in the catalog.
const gone = "gone"

func waitCmd(a *app) *cobra.Command {
	var want string
	cmd := &cobra.Command{
		Use:   "wait ID [--for STATE]",
		Short: "Wait until an extension is in a state",
		Long: `Wait until an extension is in a state (default timeout: one minute). For the state ready, also wait until the
extension's tools are in the catalog.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if want != gone && !heartbeat.State(want).Valid() {
				return usage("--for %q: want %s, or another state", want, words.Or([]string{"ready", "lost", "failed", gone}))
			}
			if err := checkID(args[0]); err != nil {
				return err
			}
			return a.withMesh(cmd, waitTimeout, func(ctx context.Context, s *session) error {
				return waitForState(ctx, s, args[0], want)
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	cmd.Flags().StringVar(&want, "for", string(heartbeat.Ready), "the `STATE` to wait for: ready, lost, …, or gone")
	return cmd
}

func waitForState(ctx context.Context, s *session, id, want string) error {
	stale, err := awaitState(ctx, s, id, want)
	if err != nil || !s.json {
		return err
	}
	return s.printObject(member{"id", id}, member{"state", want}, member{"stale", stale})
}

// awaitState waits until an extension is in the state want. It warns if the catalog may be out of date, and reports it.
func awaitState(ctx context.Context, s *session, id, want string) (stale bool, err error) {
	began := time.Now()
	s.noteNoCatalog(ctx)
	err = s.follow(ctx, func(ctx context.Context, c *mesh.Catalog) error {
		err := waitFor(ctx, c, id, want)
		if err != nil {
			select {
			case <-c.Ready():
			default: // the catalog has not been read, so the extension's state is unknown
				if errors.Is(err, context.DeadlineExceeded) {
					return fail(exitTimeout, "there was no catalog within %s", roundTime(time.Since(began)))
				}
				return fmt.Errorf("reading the catalog: %w", err)
			}
		}
		stale = c.Age() > health.StaleAfter
		s.warnIfOld(c.Age())
		e, ok := c.Get(id)
		switch {
		case errors.Is(err, context.DeadlineExceeded) && !ok:
			return fail(exitTimeout, "%s did not appear in the catalog within %s", id, roundTime(time.Since(began)))
		case errors.Is(err, context.DeadlineExceeded):
			return fail(exitTimeout, "%s did not become %s within %s: it is %s (%s)", id, want, roundTime(time.Since(began)), e.State.State, cmp.Or(e.State.Reason, "no reason given"))
		}
		return err
	})
	return stale, err
}

// waitFor waits until the extension is in the state want. If that is ready, it also waits for the extension's tools, but
// at most toolsTimeout, because the registry's handshake may fail.
func waitFor(ctx context.Context, c *mesh.Catalog, id, want string) error {
	is := func(c *mesh.Catalog) bool {
		e, ok := c.Get(id)
		return !ok && want == gone || ok && string(e.State.State) == want
	}
	for {
		err := c.WaitFor(ctx, is)
		if err != nil || want != string(heartbeat.Ready) {
			return err
		}
		toolsCtx, cancel := context.WithTimeout(ctx, toolsTimeout)
		err = c.WaitFor(toolsCtx, func(c *mesh.Catalog) bool {
			e, _ := c.Get(id)
			return !is(c) || toolsKnown(e)
		})
		cancel()
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			return ctx.Err()
		case is(c):
			return nil
		case ctx.Err() != nil:
			return err
		}
	}
}

// toolsKnown reports whether the catalog has the extension's tools: the registry has completed the handshake with it.
func toolsKnown(e mesh.Extension) bool {
	return e.Spec != nil && (len(e.Spec.Tools) > 0 || e.Spec.HandshakeHash != "")
}

// roundTime rounds a time that has passed, for people.
func roundTime(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
