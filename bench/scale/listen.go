package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/bench/internal/wait"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// discard is a channel for messages that nobody looks at.
func discard(ctx context.Context) chan *nats.Msg {
	ch := make(chan *nats.Msg, 8192)
	go func() { // ends with ctx, at the end of the program
		for {
			select {
			case <-ch:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ch
}

// listen has many count the changes, each over a connection of its own, and takes the time from a beat that changes
// one extension's state to the last of them.
func listen(ctx context.Context, s *stage, o options, r *report) error {
	var mu sync.Mutex
	heard := 0
	all := make(chan time.Time, 1)
	one := id(s.fleet.size - 1)
	count := func(*nats.Msg) {
		at := time.Now()
		mu.Lock()
		defer mu.Unlock()
		if heard++; heard == o.listeners {
			heard = 0
			all <- at
		}
	}
	for i := range o.listeners {
		nc, err := nats.Connect(s.url, nats.Name(fmt.Sprintf("listener-%d", i)))
		if err != nil {
			return err
		}
		defer nc.Close() // what is measured next is not their affair
		// Everything is subscribed to, as a follower does; what is counted is the one extension.
		_, err = nc.Subscribe(prefix.CatalogEvents()+".>", func(m *nats.Msg) {
			if strings.HasSuffix(m.Subject, ".state."+one) {
				count(m)
			}
		})
		if err == nil {
			err = nc.Flush()
		}
		if err != nil {
			return err
		}
	}
	took, err := s.swing(ctx, o.changes, func() (time.Time, error) {
		select {
		case at := <-all:
			return at, nil
		case <-time.After(30 * time.Second):
			return time.Time{}, errors.New("the change was not heard by all within 30 s")
		}
	})
	if err != nil {
		return err
	}
	r.row("a beat that says `ready`, to the last of "+plural(o.listeners, "subscription"), quantiles(took.ready))
	r.row("a beat that says anything else, which waits 100 ms for others, to the last of them", quantiles(took.other))
	return nil
}

// swings are how long changes took.
type swings struct{ ready, other []time.Duration }

// swing changes the last extension's state to and fro, n times each, and waits for each change by arrived, which
// says when.
func (s *stage) swing(ctx context.Context, n int, arrived func() (time.Time, error)) (swings, error) {
	var took swings
	for range n {
		for _, state := range []heartbeat.State{heartbeat.Restarting, heartbeat.Ready} {
			start := time.Now()
			if err := s.fleet.beat(s.fleet.size-1, state); err != nil {
				return took, err
			}
			at, err := arrived()
			if err != nil {
				return took, err
			}
			if state == heartbeat.Ready {
				took.ready = append(took.ready, at.Sub(start))
			} else {
				took.other = append(took.other, at.Sub(start))
			}
			if !wait.For(ctx, 10*time.Millisecond) {
				return took, ctx.Err()
			}
		}
	}
	return took, nil
}

func quantiles(took []time.Duration) string {
	slices.Sort(took)
	at := func(q float64) time.Duration { return took[min(int(q*float64(len(took))), len(took)-1)] }
	return fmt.Sprintf("**p50 %s, p99 %s**", ms(at(0.5)), ms(at(0.99)))
}

// follow has full followers: how long they take to have everything, to hear of a change, and what one takes of
// memory, which a process of its own tells. In the end all must say the same as the bucket.
func follow(ctx context.Context, s *stage, o options, r *report) error {
	if err := s.weigh(ctx, o, r); err != nil {
		return err
	}
	var catalogs []*mesh.Catalog
	for i := range o.followers {
		c, err := s.follower(ctx, fmt.Sprintf("follower-%d", i))
		if err != nil {
			return err
		}
		catalogs = append(catalogs, c)
	}
	one := id(s.fleet.size - 1)
	was := heartbeat.Ready
	took, err := s.swing(ctx, o.changes, func() (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		for _, c := range catalogs {
			if err := c.WaitFor(ctx, func(c *mesh.Catalog) bool { e, ok := c.Get(one); return ok && e.State.State != was }); err != nil {
				return time.Time{}, err
			}
		}
		e, _ := catalogs[0].Get(one)
		was = e.State.State
		return time.Now(), nil
	})
	if err != nil {
		return err
	}
	r.row("a beat that says `ready`, to the last of "+plural(o.followers, "full follower"), quantiles(took.ready))
	differ, err := compare(ctx, s.nc, catalogs)
	if err != nil {
		return err
	}
	r.row("documents in which the followers and the bucket differ then", fmt.Sprintf("**%d**", differ))
	return nil
}

// follower is a catalog that is followed until the stage is closed.
func (s *stage) follower(ctx context.Context, name string) (*mesh.Catalog, error) {
	nc, err := s.connect(name)
	if err != nil {
		return nil, err
	}
	c := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with the stage
		defer close(done)
		_ = c.Run(ctx) // of a connection that was closed with the stage
	}()
	s.stop = append(s.stop, func() { cancel(); <-done })
	waiting, stop := context.WithTimeout(ctx, patience)
	defer stop()
	return c, c.WaitSynced(waiting)
}
