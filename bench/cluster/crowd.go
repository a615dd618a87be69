package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/bench/internal/wait"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

const followers = 50

// crowd is who follows the catalog, a third of it at each server to begin with.
type crowd struct{ followers []*follower }

type follower struct {
	nc      *nats.Conn
	catalog *mesh.Catalog
}

// gather starts the crowd.
func (s *stage) gather() error {
	s.crowd = &crowd{}
	for i := range followers {
		f, err := s.follow(fmt.Sprintf("follower-%d", i), i)
		if err != nil {
			return err
		}
		s.stop = append(s.stop, f.leave)
		s.crowd.followers = append(s.crowd.followers, f.follower)
	}
	return nil
}

// spread puts a third of the crowd at each server again: whoever lost its server has moved.
func (s *stage) spread(ctx context.Context) error {
	errs := make([]error, len(s.crowd.followers))
	var wg sync.WaitGroup
	for i, f := range s.crowd.followers {
		wg.Go(func() { // ends within seconds
			want := s.nodes[i%len(s.nodes)].name
			errs[i] = wait.Until(ctx, 20*time.Second, "a follower is at "+want, func() error {
				at := f.nc.ConnectedServerName()
				if f.nc.IsConnected() && at == want {
					return nil
				}
				if err := f.nc.ForceReconnect(); err != nil {
					return err
				}
				return fmt.Errorf("it is at %q", at)
			})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.settled(ctx)
}

type guest struct {
	*follower
	leave func()
}

func (s *stage) follow(name string, first int, more ...nats.Option) (guest, error) {
	nc, err := s.connect(name, first, more...)
	if err != nil {
		return guest{}, err
	}
	f := &follower{nc: nc, catalog: mesh.NewCatalog(nc, mesh.CatalogOptions{})}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f.catalog.Run(ctx) }) // ends with leave
	return guest{f, func() { cancel(); wg.Wait(); nc.Close() }}, nil
}

// arrival is when a condition came to hold in each catalog.
type arrival struct {
	took    []time.Duration // sorted; of those where it did
	missing int
}

// await waits until cond holds in every follower's catalog, and says how long after since each took.
func (c *crowd) await(ctx context.Context, since time.Time, within time.Duration, cond func(*mesh.Catalog) bool) arrival {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var mu sync.Mutex
	var a arrival
	var wg sync.WaitGroup
	for _, f := range c.followers {
		wg.Go(func() { // ends with the condition or ctx
			err := f.catalog.WaitFor(ctx, cond)
			took := time.Since(since)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				a.missing++
				return
			}
			a.took = append(a.took, took)
		})
	}
	wg.Wait()
	slices.Sort(a.took)
	return a
}

// String is "median / last".
func (a arrival) String() string {
	n := len(a.took) + a.missing
	last := fmt.Sprintf("%d of %d never", a.missing, n)
	if a.missing == 0 {
		last = ms(a.took[n-1])
	}
	half := "never"
	if len(a.took) > n/2 {
		half = ms(a.took[n/2])
	}
	return half + " / " + last
}

func ms(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

// content is what a catalog holds, document by document.
func content(c *mesh.Catalog) (map[string]string, error) {
	docs := map[string]any{}
	for _, e := range c.All() {
		docs["spec."+e.ID], docs["state."+e.ID] = e.Spec, e.State
	}
	for _, h := range c.Hosts() {
		docs["host."+h.Bridge] = h
	}
	for i, k := range c.Skills() {
		docs[fmt.Sprint("skill.", i)] = k
	}
	out := map[string]string{}
	for key, doc := range docs {
		text, err := json.Marshal(doc)
		if err != nil {
			return nil, err
		}
		out[key] = string(text)
	}
	id, revision := c.Revision()
	out["revision"] = fmt.Sprint(id, "#", revision)
	return out, nil
}

// difference counts the documents in which a follower and the bucket, read afresh, are not the same, over all
// followers. A difference has settle to go away, since what is under way is none.
func (s *stage) difference(ctx context.Context, settle time.Duration) (n int, docs []string, err error) {
	for deadline := time.Now().Add(settle); ; {
		n, docs, err = s.differ(ctx)
		if err == nil && n == 0 || time.Now().After(deadline) {
			return n, docs, err
		}
		if !wait.For(ctx, 200*time.Millisecond) {
			return n, docs, ctx.Err()
		}
	}
}

func (s *stage) differ(ctx context.Context) (n int, docs []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fresh, err := mesh.LoadCatalog(ctx, s.ops, mesh.CatalogOptions{})
	if err != nil {
		return 0, nil, fmt.Errorf("reading the bucket: %w", err)
	}
	want, err := content(fresh)
	if err != nil {
		return 0, nil, err
	}
	for _, f := range s.crowd.followers {
		have, err := content(f.catalog)
		if err != nil {
			return 0, nil, err
		}
		for key := range want {
			if have[key] != want[key] {
				n++
				docs = append(docs, key)
			}
			delete(have, key)
		}
		for key := range have {
			n++
			docs = append(docs, key)
		}
	}
	slices.Sort(docs)
	return n, slices.Compact(docs), nil
}

// witness notes every change of state of echo and native that a follower saw.
type witness struct {
	mu   sync.Mutex
	saw  []string
	stop func()
}

func (c *crowd) witness(ctx context.Context, since time.Time) *witness {
	ctx, cancel := context.WithCancel(ctx)
	w := &witness{}
	var wg sync.WaitGroup
	wg.Go(func() { // ends with stop
		last := map[string]string{}
		catalog := c.followers[0].catalog
		look := func(quiet bool) {
			for _, id := range []string{echoID, nativeID} {
				for _, i := range instances(catalog, id) {
					how := string(i.State)
					if i.Reason != "" {
						how += " (" + i.Reason + ")"
					}
					if i.Breaker != nil && i.Breaker.State != heartbeat.BreakerClosed {
						how += ", breaker " + string(i.Breaker.State)
					}
					key := id + prefixed("/", i.Bridge) + "/" + i.Instance
					if last[key] != how && !quiet {
						w.mu.Lock()
						w.saw = append(w.saw, fmt.Sprintf("%s %s%s:%s %s", ms(time.Since(since)), id, prefixed("/", i.Bridge), short(i.Instance), how))
						w.mu.Unlock()
					}
					last[key] = how
				}
			}
		}
		look(true)
		_ = catalog.Watch(ctx, func(ev mesh.Event) { // ends with ctx, which is no news
			look(false)
		})
	})
	w.stop = func() { cancel(); wg.Wait() }
	return w
}

func (w *witness) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.saw)
}

// short tells instances of one extension apart.
func short(instance string) string { return instance[max(0, len(instance)-4):] }
