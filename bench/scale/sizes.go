package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/bench/internal/wait"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// The events of which the cost is measured at each size. What the registry does anyhow, its pulse and its lease, and in the
// largest mesh the question to a thousand bridges each second whether they are there, is taken off.
const (
	beatsCounted   = 50_000
	changesCounted = 10_000
)

// sizes compares what a beat and a change cost the registry in meshes of different sizes.
func sizes(ctx context.Context, o options, r *report) error {
	r.table("what one event costs the registry, in processor time; instances of an extension each, of one tool",
		"instances", "a beat without news", "a change of state, from the beat to the bucket", "without any event", "the registry's memory", "all in the catalog after")
	for _, n := range o.instances {
		r.step(plural(n, "instance"))
		row, err := size(ctx, o.bin, n, r)
		if err != nil {
			return fmt.Errorf("%d instances: %w", n, err)
		}
		r.row(row...)
	}
	return nil
}

// size is one row: a mesh of n instances.
func size(ctx context.Context, bin string, n int, r *report) (row []string, err error) {
	s, err := newStage(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := s.populate(n, 1); err != nil {
		return nil, err
	}
	beating := s.fleet.keepBeating(ctx, 0)
	defer beating()
	start := time.Now()
	if err := s.startRegistry(); err != nil {
		return nil, err
	}
	if _, err := s.awaitStatus(ctx, "the catalog is complete", s.complete(1)); err != nil {
		return nil, err
	}
	built := time.Since(start)
	beating() // what is counted now is all there is
	r.step("what the building left behind")
	idle, err := s.calm(ctx)
	if err != nil {
		return nil, err
	}
	r.step("beats")
	beats, err := s.use(func() error { return s.beats(ctx) })
	if err != nil {
		return nil, err
	}
	r.step("changes")
	changes, err := s.use(func() error { return s.changes(ctx) })
	if err != nil {
		return nil, err
	}
	r.step("nothing")
	after, err := s.calm(ctx)
	if err != nil {
		return nil, err
	}
	idle = min(idle, after)
	now, _ := proc.Memory(s.registry.PID())
	return []string{grouped(n), us(beats.each(beatsCounted, idle)), us(changes.each(changesCounted, idle)), fmt.Sprintf("%.1f %% of a core", 100*idle), fmt.Sprintf("%.0f MB", now), ms(built)}, nil
}

// calm waits until the registry has next to nothing to do, and says how much of a core that is. What it waits for is the
// collector, and what building the catalog left behind for it: in a mesh that lives there is as much of that for each event
// in a large one as in a small one.
func (s *stage) calm(ctx context.Context) (share float64, err error) {
	const span, little = 5 * time.Second, 0.2
	err = wait.Until(ctx, patience, "the registry is calm", func() error {
		cpu, start := proc.CPU(s.registry.PID()), time.Now()
		if !wait.For(ctx, span) {
			return ctx.Err()
		}
		share = (proc.CPU(s.registry.PID()) - cpu).Seconds() / time.Since(start).Seconds()
		if share > little {
			return fmt.Errorf("it uses %.0f %% of a core", 100*share)
		}
		return nil
	})
	return share, err
}

// usage is the processor time that the registry used while something happened, and how long that took.
type usage struct{ cpu, took time.Duration }

func (s *stage) use(happen func() error) (usage, error) {
	cpu, start := proc.CPU(s.registry.PID()), time.Now()
	err := happen()
	return usage{proc.CPU(s.registry.PID()) - cpu, time.Since(start)}, err
}

// each is the processor time for each of so many events, over the share of a core that is used without any.
func (u usage) each(events int, idle float64) time.Duration {
	return (u.cpu - time.Duration(idle*float64(u.took))) / time.Duration(events)
}

// beats has everybody beat in turn, saying nothing new.
func (s *stage) beats(ctx context.Context) error {
	before, err := s.status(ctx)
	if err != nil {
		return err
	}
	for n := range beatsCounted {
		if err := s.fleet.beat(n%s.fleet.size, heartbeat.Ready); err != nil {
			return err
		}
	}
	want := before.Traffic.Beats + beatsCounted
	for { // seldom: the registry's status is not for nothing
		st, err := s.status(ctx)
		if err != nil {
			return err
		}
		if st.Traffic.Beats >= want {
			return nil
		}
		if !wait.For(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// changes has some change their state and change it back, others next, and so on. Those that change together are as many
// as there may be in a mesh of any size, so that the batches are alike.
func (s *stage) changes(ctx context.Context) error {
	volley := min(100, s.fleet.size)
	nc, err := s.connect("changes")
	if err != nil {
		return err
	}
	heard := make(chan *nats.Msg, changesCounted)
	if _, err := nc.ChanSubscribe(prefix.CatalogEvents()+".state.>", heard); err != nil {
		return err
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	for sent := 0; sent < changesCounted; sent += volley {
		round := sent / volley
		state := [...]heartbeat.State{heartbeat.Restarting, heartbeat.Ready}[round%2]
		for i := range volley {
			if err := s.fleet.beat((round/2*volley+i)%s.fleet.size, state); err != nil {
				return err
			}
		}
		for range volley {
			select {
			case <-heard:
			case <-time.After(30 * time.Second):
				return errors.New("a change was not written within 30 s")
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}
