package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// waitTimeout is how long wait waits unless --timeout says otherwise.
const waitTimeout = time.Minute

// gone is what wait --for understands besides the states.
const gone = "gone"

func (a *app) waitCmd() *cobra.Command {
	var want string
	cmd := &cobra.Command{
		Use:   "wait ID [--for STATE]",
		Short: "Wait until an extension is in a state",
		Long: `Wait until an extension is in a state, for a minute unless --timeout says otherwise. One that has just become
ready is waited for until its tools are in the catalog, too.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if want != gone && !heartbeat.State(want).Valid() {
				return usage("--for %q: want %s, or one of the other states", want, orList([]string{"ready", "lost", "failed", gone}))
			}
			if err := mesh.CheckID(args[0], true); err != nil {
				return &failure{code: exitInvalidID, err: err}
			}
			return a.withMesh(cmd, waitTimeout, func(ctx context.Context, s *session) error {
				return s.wait(ctx, args[0], want)
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	cmd.Flags().StringVar(&want, "for", string(heartbeat.Ready), "the `STATE` to wait for: ready, lost, …, or gone")
	return cmd
}

func (s *session) wait(ctx context.Context, id, want string) error {
	return s.follow(ctx, func(ctx context.Context, c *mesh.Catalog) error {
		err := waitFor(ctx, c, id, want)
		if err != nil {
			select {
			case <-c.Ready():
			default: // nothing is known of any extension, and nothing can be said of this one
				return fmt.Errorf("reading the catalog: %w", err)
			}
		}
		e, ok := c.Get(id)
		switch {
		case errors.Is(err, context.DeadlineExceeded) && !ok:
			return fail(exitTimeout, "%s did not appear in time", id)
		case errors.Is(err, context.DeadlineExceeded):
			return fail(exitTimeout, "%s is not %s in time: it is %s (%s)", id, want, e.State.State, orDash(e.State.Reason))
		case err != nil:
			return err
		}
		if s.json {
			return s.printJSON(struct {
				header
				ID    string          `json:"id"`
				State heartbeat.State `json:"state"`
			}{ID: id, State: heartbeat.State(want)})
		}
		return nil
	})
}

// waitFor waits until the extension is as wanted; one that has just become ready until its tools are in the catalog, too,
// if the registry shakes hands with it in time.
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
		e, _ := c.Get(id)
		shaken, cancel := context.WithTimeout(ctx, toolsTimeout-readyFor(e))
		err = c.WaitFor(shaken, func(c *mesh.Catalog) bool {
			e, _ := c.Get(id)
			return !is(c) || introduced(e)
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

// readyFor is how long some instance of an extension has been ready.
func readyFor(e mesh.Extension) (longest time.Duration) {
	for _, i := range e.State.Instances {
		if i.State == heartbeat.Ready {
			longest = max(longest, time.Since(i.Since))
		}
	}
	return longest
}

// introduced reports whether the registry has shaken hands with an extension: the tools are those that it has.
func introduced(e mesh.Extension) bool {
	return e.Spec != nil && (len(e.Spec.Tools) > 0 || e.Spec.HandshakeHash != "")
}

func orDash(s string) string {
	if s == "" {
		return "no reason given"
	}
	return s
}
