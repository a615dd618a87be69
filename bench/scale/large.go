package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/bench/internal/wait"
	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// complete reports whether the catalog has all of the fleet, and there is nothing more to do.
func (s *stage) complete(tools int) func(status) bool {
	return func(st status) bool {
		return st.Leading && st.Tools == s.fleet.size*tools && st.Extensions["ready"] == s.fleet.size && st.Pending == 0 && st.Handshakes == 0
	}
}

// build starts a registry on an empty bucket: what it takes until all is shown.
func build(ctx context.Context, s *stage, o options, r *report) error {
	if err := s.populate(o.extensions, o.tools); err != nil {
		return err
	}
	start := time.Now()
	if err := s.startRegistry(); err != nil {
		return err
	}
	if _, err := s.awaitStatus(ctx, "the catalog is complete", s.complete(o.tools)); err != nil {
		return err
	}
	took := time.Since(start)
	cpu := proc.CPU(s.registry.PID())
	_, peak := proc.Memory(s.registry.PID())
	r.row("a registry is started on an empty bucket: all is in the catalog after", fmt.Sprintf("**%s**; the registry used %s of processor time, %.0f MB at most", ms(took), ms(cpu), peak))
	return nil
}

// rest lets everybody beat and nothing change.
func rest(ctx context.Context, s *stage, o options, r *report) error {
	s.beating = s.fleet.keepBeating(ctx, 0)
	s.stop = append(s.stop, func() { s.beating() })
	if !wait.For(ctx, 2*time.Second) {
		return ctx.Err()
	}
	registry, server, start := proc.CPU(s.registry.PID()), proc.CPU(s.natsd.PID()), time.Now()
	before, err := s.status(ctx)
	if err != nil {
		return err
	}
	if !wait.For(ctx, o.span) {
		return ctx.Err()
	}
	registry, server = proc.CPU(s.registry.PID())-registry, proc.CPU(s.natsd.PID())-server
	passed := time.Since(start)
	after, err := s.status(ctx)
	if err != nil {
		return err
	}
	now, _ := proc.Memory(s.registry.PID())
	serverNow, _ := proc.Memory(s.natsd.PID())
	r.row(fmt.Sprintf("at rest, %.0f beats a second, %d writes", float64(after.Traffic.Beats-before.Traffic.Beats)/passed.Seconds(), after.Traffic.Writes-before.Traffic.Writes),
		fmt.Sprintf("registry **%s, %.0f MB**; nats-server %s, %.0f MB", percent(registry, passed), now, percent(server, passed), serverNow))
	return nil
}

// ask runs extctl against it.
func ask(ctx context.Context, s *stage, o options, r *report) error {
	for _, args := range [][]string{{"call", "ext_" + id(0) + "_tool_0", "field_0=x"}, {"tools"}, {"list"}} {
		var failed error
		res := load.Run(ctx, load.Options{Calls: 5}, func(ctx context.Context) error {
			cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "extctl"), append(args, "--server", s.url, "--timeout", "60s")...)
			if out, err := cmd.Output(); err != nil {
				failed = fmt.Errorf("extctl %v: %w: %s", args, err, out)
			}
			return failed
		})
		if failed != nil {
			return failed
		}
		r.row("`extctl "+strings.Join(args, " ")+"`, median of 5", "**"+ms(res.Quantile(0.5))+"**")
	}
	return nil
}

// flap has extensions change their state once a second.
func flap(ctx context.Context, s *stage, o options, r *report) error {
	n := min(o.flapping, s.fleet.size)
	s.beating()
	s.beating = s.fleet.keepBeating(ctx, n)
	nc, err := s.connect("a follower's bytes")
	if err != nil {
		return err
	}
	if _, err := nc.ChanSubscribe(prefix.CatalogEvents()+".>", discard(ctx)); err != nil {
		return err
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	before, err := s.status(ctx)
	if err != nil {
		return err
	}
	bytes, registry, start := nc.Stats().InBytes, proc.CPU(s.registry.PID()), time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for round := 0; time.Since(start) < o.span; round++ {
		state := [...]heartbeat.State{heartbeat.Restarting, heartbeat.Ready}[round%2]
		for i := range n {
			if err := s.fleet.beat(i, state); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if _, err := s.awaitStatus(ctx, "the changes are written", func(st status) bool { return st.Pending == 0 }); err != nil {
		return err
	}
	passed := time.Since(start)
	after, err := s.status(ctx)
	if err != nil {
		return err
	}
	rate := float64(nc.Stats().InBytes-bytes) / passed.Seconds()
	writes := float64(after.Traffic.Writes-before.Traffic.Writes) / passed.Seconds()
	r.row(plural(n, "extension")+" change their state once a second",
		fmt.Sprintf("**%.0f kB a second to a follower**, %.0f keys a second; registry %s", rate/1000, writes, percent(proc.CPU(s.registry.PID())-registry, passed)))
	return nil
}
