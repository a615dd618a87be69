package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func forgetCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "forget ID",
		Short: "Remove a lost extension from the catalog now, instead of after the registry's --forget-after",
		Args:  cobra.ExactArgs(1),
		RunE: a.onMesh(requestTimeout, func(ctx context.Context, s *session, args []string) error {
			if err := checkID(args[0]); err != nil {
				return err
			}
			if _, err := s.oneExtension(ctx, args[0]); err != nil { // following waits for a registry
				return err
			}
			return s.follow(ctx, func(ctx context.Context, c *mesh.Catalog) error {
				return forget(ctx, s, c, args[0])
			})
		}),
		ValidArgsFunction: a.completeIDs,
	}
}

// forget publishes a deregistration for the extension and waits until the registry has removed it.
func forget(ctx context.Context, s *session, c *mesh.Catalog, id string) error {
	if err := c.WaitSynced(ctx); err != nil {
		return err
	}
	e, err := extension(c, id)
	if err != nil {
		return err
	}
	if err := checkGone(e); err != nil {
		return err
	}
	ctx, end := s.denied.watch(ctx, s.prefix.Shutdown(id)+`"`)
	defer end()
	// The registry ignores a notice without an instance while the extension has named instances, so these come first.
	for _, i := range append(slices.Clone(e.State.Instances), wire.InstanceState{}) {
		data, err := json.Marshal(wire.ShutdownNotice{ID: id, Instance: i.Instance, Reason: wire.ReasonRemoved})
		if err != nil {
			return err
		}
		if err := s.nc.Publish(s.prefix.Shutdown(id), data); err != nil {
			return err
		}
	}
	err = c.WaitFor(ctx, func(c *mesh.Catalog) bool { _, ok := c.Get(id); return !ok })
	if by := endedBy(ctx); err != nil && by != nil {
		return by
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fail(exitTimeout, "%s is still in the catalog", id).
			with("is a registry running (extctl show registry)? Does a bridge still have its manifest (extctl hosts)?", nil)
	}
	if err != nil {
		return err
	}
	if s.json {
		return s.printObject(member{"forgotten", id})
	}
	return nil
}

// checkGone fails if the extension still has a running instance: its next heartbeat would add it again.
func checkGone(e mesh.Extension) error {
	for _, i := range e.State.Instances {
		if i.State == heartbeat.Lost || i.State == heartbeat.Shutdown {
			continue
		}
		where := cmp.Or(i.Bridge, i.Host, "an unknown host")
		return fail(exitOther, "%s is still running: its instance at %s is %s", e.ID, terminal.Clean(where), i.State).
			with("stop it first: extctl disable "+e.ID+" on its host, or stop its service or its bridge", nil)
	}
	return nil
}
