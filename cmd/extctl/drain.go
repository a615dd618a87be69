package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// drainOptions are the flags of drain and undrain.
type drainOptions struct {
	bridgeFlags
	host string
	yes  bool
}

func drainCmd(a *app) *cobra.Command {
	var o drainOptions
	cmd := &cobra.Command{
		Use:   "drain [ID]",
		Short: "Stop new calls to an extension's instances, or to a host; calls in progress finish",
		Long: `Stop new calls to the instances of an extension, or with --host to everything that a bridge runs. Calls in progress
finish; the command does not wait for them (extmesh_bridge_inflight_calls is 0 when they have). New ones go to other
instances. It lasts until extctl undrain or extctl restart, or until the bridge restarts.

If no other instance of an extension is ready, calls to it would fail; that requires --yes.`,
		Example: "  extctl drain weather --bridge web-1\n  extctl drain --host web-1",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := o.subject(cmd, args)
			if err != nil {
				return err
			}
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				return drain(ctx, s, o, id)
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	o.addTo(cmd)
	cmd.Flags().BoolVar(&o.yes, "yes", false, "also if calls to an extension then fail, because no other instance is ready")
	return cmd
}

func (o *drainOptions) addTo(cmd *cobra.Command) {
	o.add(cmd)
	cmd.Flags().StringVar(&o.host, "host", "", "everything on the bridge, or on all bridges of the host, `NAME`")
}

// subject checks the arguments: either an id, or --host.
func (o *drainOptions) subject(cmd *cobra.Command, args []string) (id string, err error) {
	switch {
	case o.host == "" && len(args) == 0:
		return "", fail(exitUsage, "want an extension, or a host: %s ID, or %s --host NAME", cmd.CommandPath(), cmd.CommandPath()).
			with("for example: "+exampleOf(cmd), nil)
	case o.host == "":
		return args[0], nil
	case len(args) > 0 || o.bridge != "" || o.instance != "":
		return "", fail(exitUsage, "--host is everything on a host; it does not go with an extension, --bridge or --instance").
			with(fmt.Sprintf("for one extension there: %s ID --bridge %s", cmd.CommandPath(), o.host), nil)
	}
	return "", nil
}

// targets are the bridges to ask: those of the extension's selected instances, or those of the host if id is empty.
func (o *drainOptions) targets(ctx context.Context, s *session, id string) ([]string, error) {
	if id != "" {
		_, bridges, err := o.choose(ctx, s, id)
		return bridges, err
	}
	c, err := s.catalog(ctx, wire.KindHost)
	if err != nil {
		return nil, err
	}
	return s.bridgesOfHost(c, o.host)
}

// bridgesOfHost are the bridges that are named so, or run on the host that is named so: those that answer, if there are any.
func (s *session) bridgesOfHost(c *mesh.Catalog, name string) ([]string, error) {
	var found, known []string
	for _, h := range c.Hosts() {
		if h.Bridge == name || h.Host == name {
			found = append(found, h.Bridge)
		}
		known = append(known, h.Bridge, h.Host)
	}
	if len(found) > 0 {
		return s.reachable(found, c.Hosts()), nil
	}
	f := fail(exitNotFound, "no bridge and no host is named %q", name).with("extctl hosts lists them", nil)
	slices.Sort(known)
	f.suggest(name, slices.Compact(known))
	return nil, f
}

// drain drains an extension, or a host if id is empty.
func drain(ctx context.Context, s *session, o drainOptions, id string) error {
	bridges, err := o.targets(ctx, s, id)
	if err != nil {
		return err
	}
	drains, params := o.selects, o.params(id)
	if id == "" {
		drains, params = func(i wire.InstanceState) bool { return slices.Contains(bridges, i.Bridge) }, map[string]any{}
	}
	if !o.yes {
		if err := checkDrain(ctx, s, o, id, drains); err != nil {
			return err
		}
	}
	answers, failed, err := askBridges[operated](ctx, s, bridges, "drain", params)
	if err != nil {
		return err
	}
	if len(failed) == 0 {
		awaitDraining(ctx, s, id, drains)
	}
	return cmp.Or(interrupted(ctx), printOperated(s, answers, failed, "draining"))
}

// awaitDraining waits until the catalog shows no instance as ready that drains selects, so that the next drain counts on none of
// them.
func awaitDraining(ctx context.Context, s *session, id string, drains func(wire.InstanceState) bool) {
	ready := func(i wire.InstanceState) bool { return drains(i) && i.State == heartbeat.Ready }
	awaitCatalog(ctx, s, func(ctx context.Context) bool {
		c, err := s.load(ctx, mesh.CatalogOptions{}, wire.KindState) // without a warning each time
		return err == nil && !slices.ContainsFunc(c.All(), func(e mesh.Extension) bool {
			return isOf(e, id) && e.State != nil && slices.ContainsFunc(e.State.Instances, ready)
		})
	})
}

// isOf reports whether e is the extension id or one of its members; "" is any.
func isOf(e mesh.Extension, id string) bool {
	return id == "" || e.ID == id || strings.HasPrefix(e.ID, id+".")
}

// checkDrain fails if an extension has ready instances, but none that would not be drained.
func checkDrain(ctx context.Context, s *session, o drainOptions, id string, drains func(wire.InstanceState) bool) error {
	c, err := s.catalog(ctx, wire.KindState)
	if err != nil {
		return err
	}
	var without []string
	for _, e := range c.All() {
		if isOf(e, id) && lastReady(e.State.Instances, drains) {
			without = append(without, e.ID)
		}
	}
	if len(without) == 0 {
		return nil
	}
	return fail(exitNeedsYes, "no other instance of %s is ready: calls would fail until extctl undrain %s", words.Some(without, 5), o.words(id)).
		with("to do it anyway: extctl drain "+o.words(id)+" --yes", map[string]any{"extensions": without})
}

// words are the arguments of the command, for hints.
func (o drainOptions) words(id string) string {
	if id == "" {
		return "--host " + terminal.ShellWord(o.host)
	}
	out := id
	if o.bridge != "" {
		out += " --bridge " + terminal.ShellWord(o.bridge)
	}
	if o.instance != "" {
		out += " --instance " + terminal.ShellWord(o.instance)
	}
	return out
}

// lastReady reports whether instances has ready ones, and all of them would be drained.
func lastReady(instances []wire.InstanceState, drains func(wire.InstanceState) bool) bool {
	last := false
	for _, i := range instances {
		switch {
		case i.State != heartbeat.Ready:
		case drains(i):
			last = true
		case i.Breaker == nil || i.Breaker.State != heartbeat.BreakerOpen: // with an open one, it refuses calls
			return false
		}
	}
	return last
}

func undrainCmd(a *app) *cobra.Command {
	var o drainOptions
	cmd := &cobra.Command{
		Use:   "undrain [ID]",
		Short: "Let drained instances of an extension, or of a host, take calls again",
		Long: `Let the drained instances of an extension, or with --host of everything that a bridge runs, take calls again, and wait until
they are ready (default timeout: 90 s). They start with new processes. Instances that are not drained are left alone.`,
		Example: "  extctl undrain weather\n  extctl undrain --host web-1",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := o.subject(cmd, args)
			if err != nil {
				return err
			}
			return a.withMesh(cmd, instanceTimeout, func(ctx context.Context, s *session) error {
				return undrain(ctx, s, o, id)
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	o.addTo(cmd)
	return cmd
}

// undrain restarts the drained instances of an extension, or of a host if id is empty.
func undrain(ctx context.Context, s *session, o drainOptions, id string) error {
	bridges, err := o.targets(ctx, s, id)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	spots, failed, err := spotsOn(asking, s, bridges, id)
	if err != nil {
		return err
	}
	spots = slices.DeleteFunc(spots, func(p spot) bool {
		return p.state != heartbeat.Draining || p.reason != instance.ReasonDrain || o.instance != "" && p.instance != o.instance
	})
	if len(spots) == 0 && !s.json {
		s.note("%s has no drained instances", terminal.Clean(o.words(id)))
	}
	began := time.Now()
	spots, failed = restartEach(ctx, s, spots, failed)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := awaitBack(ctx, s, spots, began); err != nil {
		if !s.json {
			_ = failed.report(s.app) // the error is more important
		}
		return err
	}
	if s.json {
		return cmp.Or(interrupted(ctx), printBridges(s, operatedOn(spots), failed))
	}
	return cmp.Or(interrupted(ctx), failed.report(s.app))
}

// awaitBack waits until instances that were restarted at the same time are ready, and until the catalog shows that, so that a drain
// that follows counts on them. It returns the error of the first one that does not come back, and prints the others unless the output
// is JSON.
func awaitBack(ctx context.Context, s *session, spots []spot, began time.Time) error {
	type end struct {
		err  error
		took time.Duration
	}
	ends := make([]chan end, len(spots))
	for n, p := range spots {
		ends[n] = make(chan end, 1)
		go func() { // ends with ctx; it is waited for below
			err := awaitReady(ctx, s, p)
			ends[n] <- end{err, time.Since(began)}
		}()
	}
	var lost error
	ready, ids := map[string]wire.InstanceState{}, map[string]bool{}
	for n, p := range spots {
		e := <-ends[n]
		switch err := e.err; {
		case err == nil:
			ready[p.instance], ids[p.id] = wire.InstanceState{}, true
			if !s.json {
				fmt.Fprintf(s.stdout, "%s: %s is ready after %s\n", terminal.Clean(p.name()), terminal.Clean(p.id), e.took.Round(100*time.Millisecond))
			}
		case lost == nil:
			lost = fail(exitCode(err), "%s on %s did not come back: %w", p.id, p.name(), err).
				with("extctl logs "+p.id+" --bridge "+p.bridge+" shows its output", nil)
		case errors.Is(err, context.Canceled): // the user has ended the wait
		default:
			s.note("%s on %s did not come back: %v", terminal.Clean(p.id), terminal.Clean(p.name()), err)
		}
	}
	if ctx.Err() == nil {
		awaitShown(ctx, s, slices.Sorted(maps.Keys(ids)), ready, func(_, is wire.InstanceState) bool { return is.State == heartbeat.Ready })
	}
	return lost
}

// restartEach requests the restart of instances, at the same time. It returns those that restart, and the bridges that fail.
func restartEach(ctx context.Context, s *session, spots []spot, failed failures) ([]spot, failures) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	errs := make([]error, len(spots))
	var wg sync.WaitGroup
	for n, p := range spots {
		wg.Go(func() { // ends with ctx
			errs[n] = requestBridge[operated](ctx, s, p.bridge, "restart", map[string]any{"id": p.id, "instance": p.instance, "drain_ms": drainLimit.Milliseconds()}).err
		})
	}
	wg.Wait()
	var restarting []spot
	for n, p := range spots {
		if errs[n] == nil {
			restarting = append(restarting, p)
		} else if !slices.ContainsFunc(failed, func(f failedJSON) bool { return f.Bridge == p.bridge }) {
			failed = append(failed, s.failureOf(p.bridge, errs[n]))
		}
	}
	return restarting, failed
}
