package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/terminal"
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
	looking, cancel := context.WithTimeout(ctx, requestLimit(s))
	defer cancel()
	e, bridges, err := o.choose(looking, s, id)
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
			r := &rolling{s: s, extension: e, opt: o, failed: failed, states: map[string]heartbeat.State{}}
			if err := r.run(ctx, spots); err != nil {
				return err
			}
			var reported error
			if !s.json { // which is one object also if the wait fails
				reported = r.failed.report(s.app)
			}
			if err := awaitReadyIf(ctx, s, o.wait, id); err != nil {
				return err
			}
			if s.json {
				return cmp.Or(interrupted(ctx), printBridges(s, operatedOn(r.done), r.failed))
			}
			return cmp.Or(interrupted(ctx), reported)
		}
	}
	return restartAtOnce(ctx, s, o, id, bridges)
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

func awaitReadyIf(ctx context.Context, s *session, wait bool, id string) error {
	if !wait {
		return nil
	}
	if s.timeout == 0 { // the user's is a limit of the whole command
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, waitTimeout)
		defer cancel()
	}
	_, err := awaitState(ctx, s, id, string(heartbeat.Ready))
	return err
}

// restartAtOnce restarts all selected instances, which run on bridges, at the same time.
func restartAtOnce(ctx context.Context, s *session, o restartOptions, id string, bridges []string) error {
	looking, cancel := context.WithTimeout(ctx, requestLimit(s)/4) // a bridge that hangs must not keep the others from restarting
	spots, _, _ := spotsOn(looking, s, bridges, id)                // with the members
	ids := map[string]bool{id: true}
	for _, p := range spots {
		ids[p.id] = true
	}
	cancel()
	reading, cancel := context.WithTimeout(ctx, requestLimit(s))
	before, _ := instancesOf(reading, s, slices.Sorted(maps.Keys(ids))...) // without it, the catalog is not waited for
	cancel()
	asking, cancel := context.WithTimeout(ctx, requestLimit(s))
	defer cancel()
	answers, failed, err := askBridges[operated](asking, s, bridges, "restart", o.params(id))
	if err != nil {
		return err
	}
	var printed error
	if !s.json { // which is one object also if the command fails
		printed = printOperated(s, answers, failed, "restarting")
	}
	pending, restarted := map[string]wire.InstanceState{}, map[string]bool{id: true}
	for _, p := range spots {
		if slices.ContainsFunc(answers, func(a answer[operated]) bool { return slices.Contains(a.parsed.Instances, p.instance) }) {
			restarted[p.id] = true
		}
	}
	for _, a := range answers {
		for _, name := range a.parsed.Instances {
			if i, ok := before[name]; ok && i.State != heartbeat.Gated {
				pending[name] = i
			}
		}
	}
	await := slices.Sorted(maps.Keys(restarted))
	awaitShown(ctx, s, await, pending, ranSince)
	for _, id := range await {
		if err := awaitReadyIf(ctx, s, o.wait, id); err != nil {
			return err
		}
	}
	if s.json {
		printed = printOperated(s, answers, failed, "restarting")
	}
	return cmp.Or(interrupted(ctx), printed)
}

// interrupted is the error of a command that the user has ended while it waited; the requests were accepted.
func interrupted(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return silentError(exitInterrupted)
	}
	return nil
}

// instancesOf reads the instances of extensions from the catalog, by their names.
func instancesOf(ctx context.Context, s *session, ids ...string) (map[string]wire.InstanceState, error) {
	out := map[string]wire.InstanceState{}
	for _, id := range ids {
		c, err := s.oneExtension(ctx, id)
		if err != nil {
			return nil, err
		}
		if e, ok := c.Get(id); ok && e.State != nil {
			for _, i := range e.State.Instances {
				out[i.Instance] = i
			}
		}
	}
	return out, nil
}

// How long a command waits until the catalog shows what it did, and how often it looks.
const (
	shownTimeout = 5 * time.Second
	shownPoll    = 50 * time.Millisecond
)

// awaitCatalog waits until shown, which reads the catalog, returns true. If it does not in time, for example because no registry
// is running, that is printed: the bridges have accepted the requests.
func awaitCatalog(ctx context.Context, s *session, shown func(context.Context) bool) bool {
	limited, cancel := context.WithTimeout(ctx, shownTimeout)
	defer cancel()
	for !shown(limited) {
		if !pause.For(limited, shownPoll) {
			if !errors.Is(ctx.Err(), context.Canceled) {
				s.note("the catalog does not show that yet")
			}
			return false
		}
	}
	return true
}

// awaitShown waits until the catalog shows all instances in pending as shown wants, which compares their states before and
// now.
func awaitShown(ctx context.Context, s *session, ids []string, pending map[string]wire.InstanceState, shown func(was, is wire.InstanceState) bool) bool {
	return awaitCatalog(ctx, s, func(ctx context.Context) bool {
		now, err := instancesOf(ctx, s, ids...)
		maps.DeleteFunc(pending, func(name string, was wire.InstanceState) bool {
			return err == nil && shown(was, now[name])
		})
		return len(pending) == 0
	})
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

const (
	// drainLimit is how long a rolling restart waits for the calls in flight of an instance: as long as a call takes by default.
	drainLimit = 30 * time.Second
	// statePoll is how often restart requests from a bridge the state of an instance.
	statePoll = 100 * time.Millisecond
)

// rolling restarts the instances of an extension and its members one after the other.
type rolling struct {
	s         *session
	extension mesh.Extension // before the restart
	opt       restartOptions
	failed    failures // bridges that did not answer
	states    map[string]heartbeat.State
	done      []spot
	unshown   bool // the catalog did not show a restart in time, so that the next ones are not waited for
}

// run restarts the instances in spots. It ends at the first that does not come back.
func (r *rolling) run(ctx context.Context, spots []spot) error {
	for _, p := range spots {
		r.states[p.instance] = p.state
	}
	var gated spot
	spots = slices.DeleteFunc(spots, func(p spot) bool {
		if p.state == heartbeat.Gated && len(spots) > 1 {
			r.s.note("%s", terminal.Clean(fmt.Sprintf("%s is not started, because a requirement is missing: %s", p.name(), p.reason)))
		}
		if p.state == heartbeat.Gated {
			gated = p
		}
		return p.state == heartbeat.Gated
	})
	if len(spots) == 0 && gated.id != "" && len(r.failed) == 0 {
		return fail(exitUnavailable, "%s is not started, because a requirement is missing: %s", gated.id, terminal.Clean(gated.reason)).
			with("then check the requirements again with: extctl reload; for a variable, restart the bridge with it", map[string]any{"state": heartbeat.Gated})
	}
	// Those that are not ready come first: if they do not come back, the ready ones go on.
	slices.SortStableFunc(spots, func(a, b spot) int { return rank(a) - rank(b) })
	for n, p := range spots {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fail(exitTimeout, "the time of the command is over; %d of %d instances were restarted", n, len(spots)).
				with(fmt.Sprintf("--timeout %s gives it longer", 4*r.s.timeout), map[string]any{"restarted": spotNames(spots[:n]), "left": spotNames(spots[n:])})
		}
		if !r.s.json {
			fmt.Fprintf(r.s.stdout, "%s: restarting … ", terminal.Clean(r.label(p)))
		}
		began := time.Now()
		if err := r.one(ctx, p, spots); err != nil {
			if !r.s.json {
				fmt.Fprintln(r.s.stdout, "failed")
			}
			return r.stopped(ctx, err, spots, n)
		}
		r.done = append(r.done, p)
		if !r.s.json {
			fmt.Fprintf(r.s.stdout, "ready after %s (%d/%d)\n", time.Since(began).Round(100*time.Millisecond), n+1, len(spots))
		}
	}
	return nil
}

// rank is 1 for a ready instance, 0 for others.
func rank(p spot) int {
	if p.state == heartbeat.Ready {
		return 1
	}
	return 0
}

// label names an instance, with the id of a member.
func (r *rolling) label(p spot) string {
	if p.id != r.extension.ID {
		return p.id + " on " + p.name()
	}
	return p.name()
}

// one restarts one instance and waits until it is ready, and the catalog shows that.
func (r *rolling) one(ctx context.Context, p spot, spots []spot) error {
	ctx, cancel := context.WithTimeout(ctx, r.opt.each)
	defer cancel()
	params := map[string]any{"id": p.id, "instance": p.instance}
	if r.othersReady(p, spots) {
		params["drain_ms"] = min(drainLimit, r.opt.each/2).Milliseconds() // the other half is for its start; an older bridge ignores it
	}
	before, _ := instancesOf(ctx, r.s, p.id) // without it, the catalog is not waited for
	if a := requestBridge[operated](ctx, r.s, p.bridge, "restart", params); a.err != nil {
		return a.err
	}
	if err := awaitReady(ctx, r.s, p); err != nil {
		return err
	}
	r.states[p.instance] = heartbeat.Ready
	if was, ok := before[p.instance]; ok && !r.unshown {
		r.unshown = !awaitShown(ctx, r.s, []string{p.id}, map[string]wire.InstanceState{p.instance: was}, func(was, is wire.InstanceState) bool {
			return ranSince(was, is) && is.State == heartbeat.Ready
		})
	}
	return nil
}

// awaitReady waits until the bridge reports an instance, whose restart was requested, as ready, until ctx ends. Requests
// may fail for a while: a connection to NATS may be down.
func awaitReady(ctx context.Context, s *session, p spot) error {
	tick := time.NewTicker(statePoll)
	defer tick.Stop()
	began := time.Now()
	answered := began
	for {
		asking, cancel := context.WithTimeout(ctx, requestTimeout/2)
		now, err := stateOf(asking, s, p)
		cancel()
		if err == nil {
			answered = time.Now()
		}
		switch {
		case err == nil && now.state == heartbeat.Ready:
			return nil
		case err == nil && (now.state == heartbeat.Failed || now.state == heartbeat.Gated):
			return &notBackError{now, fail(exitUnavailable, "it is %s (%s)", now.state, cmp.Or(now.reason, "no reason given"))}
		case err == nil:
			p = now
		case ctx.Err() == nil && (isFinal(err) || time.Since(answered) > requestTimeout):
			return &notBackError{now, err}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return &notBackError{p, fail(exitTimeout, "after %v it is still %s (%s)", roundTime(time.Since(began)), p.state, cmp.Or(p.reason, "no reason given"))}
		}
	}
}

// notBackError is why an instance did not come back, with its last known state.
type notBackError struct {
	spot
	error
}

func (e *notBackError) Unwrap() error { return e.error }

// othersReady reports whether calls go to other instances while p restarts.
func (r *rolling) othersReady(p spot, spots []spot) bool {
	if p.id == r.extension.ID && otherReady(r.extension, p.instance) {
		return true
	}
	return slices.ContainsFunc(spots, func(q spot) bool {
		return q.id == p.id && q.instance != p.instance && r.states[q.instance] == heartbeat.Ready
	})
}

// stopped is the error of a restart that ends at spots[n].
func (r *rolling) stopped(ctx context.Context, err error, spots []spot, n int) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return err // the bridge completes the restart
	}
	p := spots[n]
	last := p
	if e, ok := errors.AsType[*notBackError](err); ok {
		last = e.spot
	}
	hint := fmt.Sprintf("extctl logs %s --bridge %s shows its output; after a fix, extctl restart %s begins with the instances that are not ready", p.id, p.bridge, r.extension.ID)
	return fail(exitCode(err), "%s did not come back: %w; %d of %d instances were restarted, the others were not touched", r.label(p), err, n, len(spots)).
		with(hint, map[string]any{
			"id": p.id, "bridge": p.bridge, "instance": p.instance, "state": last.state, "reason": last.reason,
			"restarted": spotNames(spots[:n]), "left": spotNames(spots[n+1:]),
		})
}

func spotNames(spots []spot) []string {
	out := []string{}
	for _, p := range spots {
		out = append(out, p.name())
	}
	return out
}

// requestLimit is the limit of the requests of a command that takes longer as a whole: half of the user's --timeout, so that a
// bridge that hangs leaves time for the rest.
func requestLimit(s *session) time.Duration { return cmp.Or(s.timeout/2, requestTimeout) }

// isFinal reports whether a request would fail again.
func isFinal(err error) bool {
	code := exitCode(err)
	return code == exitNotFound || code == exitDenied || errors.Is(err, nats.ErrConnectionClosed)
}
