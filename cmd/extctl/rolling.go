package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

const (
	// drainLimit is how long a rolling restart waits for the calls in flight of an instance: as long as a call takes by default.
	drainLimit = 30 * time.Second
	// statePoll is how often restart asks a bridge for the state of an instance.
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

func newRolling(s *session, e mesh.Extension, o restartOptions, failed failures) *rolling {
	return &rolling{s: s, extension: e, opt: o, failed: failed, states: map[string]heartbeat.State{}}
}

// run restarts the instances in spots. It ends at the first that does not come back.
func (r *rolling) run(ctx context.Context, spots []spot) error {
	for _, p := range spots {
		r.states[p.instance] = p.state
	}
	spots = slices.DeleteFunc(spots, func(p spot) bool {
		if p.state == heartbeat.Gated {
			r.s.note("%s", terminal.Clean(fmt.Sprintf("%s is not started, because a requirement is missing: %s", p.name(), p.reason)))
		}
		return p.state == heartbeat.Gated
	})
	// Those that are not ready come first: if they do not come back, the ready ones go on.
	slices.SortStableFunc(spots, func(a, b spot) int { return rank(a) - rank(b) })
	for n, p := range spots {
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
	if r.s.json {
		return printBridges(r.s, r.results(), r.failed)
	}
	return r.failed.report(r.s.app)
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
		params["drain_ms"] = min(drainLimit, r.opt.each).Milliseconds() // an older bridge ignores it
	}
	before, _ := instancesOf(ctx, r.s, p.id) // without it, the catalog is not waited for
	if a := requestBridge[operated](ctx, r.s, p.bridge, "restart", params); a.err != nil {
		return a.err
	}
	if err := awaitReady(ctx, r.s, p, r.opt.each); err != nil {
		return err
	}
	r.states[p.instance] = heartbeat.Ready
	if was, ok := before[p.instance]; ok && !r.unshown {
		r.unshown = !awaitShown(ctx, r.s, p.id, map[string]wire.InstanceState{p.instance: was}, func(was, is wire.InstanceState) bool {
			return ranSince(was, is) && is.State == heartbeat.Ready
		})
	}
	return nil
}

// awaitReady waits until the bridge reports an instance, whose restart was requested, as ready. limit is that of ctx.
func awaitReady(ctx context.Context, s *session, p spot, limit time.Duration) error {
	tick := time.NewTicker(statePoll)
	defer tick.Stop()
	for {
		now, err := stateOf(ctx, s, p)
		switch {
		case err == nil && now.state == heartbeat.Ready:
			return nil
		case err == nil && (now.state == heartbeat.Failed || now.state == heartbeat.Gated):
			return &notBackError{now, fail(exitUnavailable, "it is %s (%s)", now.state, orDash(now.reason))}
		case err == nil:
			p = now
		case !errors.Is(err, context.DeadlineExceeded):
			return &notBackError{now, err}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return &notBackError{p, fail(exitTimeout, "after %v it is still %s (%s)", limit, p.state, orDash(p.reason))}
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
	if ctx.Err() != nil {
		return err // interrupted, or the time of the whole command is over: the bridge completes the restart
	}
	p := spots[n]
	last := p
	if e, ok := errors.AsType[*notBackError](err); ok {
		last = e.spot
	}
	f := fail(exitCode(err), "%s did not come back: %w; %d of %d instances were restarted, the others were not touched", r.label(p), err, n, len(spots))
	f.hint = fmt.Sprintf("extctl logs %s --bridge %s shows its output; after a fix, extctl restart %s begins with the instances that are not ready", p.id, p.bridge, r.extension.ID)
	f.data = map[string]any{
		"id": p.id, "bridge": p.bridge, "instance": p.instance, "state": last.state, "reason": last.reason,
		"restarted": spotNames(spots[:n]), "left": spotNames(spots[n+1:]),
	}
	return f
}

func spotNames(spots []spot) []string {
	out := []string{}
	for _, p := range spots {
		out = append(out, p.name())
	}
	return out
}

// results are the restarted instances as the bridges' results of restart.
func (r *rolling) results() []controlJSON {
	byBridge := map[string][]string{}
	for _, p := range r.done {
		byBridge[p.bridge] = append(byBridge[p.bridge], p.instance)
	}
	out := []controlJSON{}
	for _, b := range slices.Sorted(maps.Keys(byBridge)) {
		result, err := json.Marshal(operated{byBridge[b]})
		if err != nil { // strings can always be encoded
			panic(err)
		}
		out = append(out, controlJSON{b, result})
	}
	return out
}
