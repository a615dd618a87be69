package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// follower is a connection with a catalog that follows the mesh over it, as every agent has one.
type follower struct {
	nc      *nats.Conn
	catalog *mesh.Catalog
}

// follow starts a follower, which stops with the stage.
func (s *stage) follow(urls, name string, more ...nats.Option) *follower {
	nc := s.connect(urls, name, more...)
	f := &follower{nc: nc, catalog: mesh.NewCatalog(nc, mesh.CatalogOptions{})}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f.catalog.Run(ctx) }) // ends in close
	s.onClose(func() { cancel(); wg.Wait() })
	return f
}

// arrival is when a condition became true in each of several catalogs.
type arrival struct {
	took    []time.Duration // sorted
	missing int             // catalogs where it did not
}

// await waits until a condition is true in the catalogs of all followers; times count from since.
func await(ctx context.Context, followers []*follower, since time.Time, limit time.Duration, condition func(*mesh.Catalog) bool) (a arrival) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var mu sync.Mutex // guards a
	var wg sync.WaitGroup
	for _, f := range followers {
		wg.Go(func() { // ends with the condition or ctx
			err := f.catalog.WaitFor(ctx, condition)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				a.missing++
			} else {
				a.took = append(a.took, time.Since(since))
			}
		})
	}
	wg.Wait()
	slices.Sort(a.took)
	return a
}

// last is when the last catalog had it; it fails if one never had.
func (a arrival) last() time.Duration {
	if a.missing > 0 {
		fail("%s of %d did not get the change in time", plural(a.missing, "follower"), a.missing+len(a.took))
	}
	return a.took[len(a.took)-1]
}

// String is when half of the catalogs and the last one had it, in ms.
func (a arrival) String() string {
	n := len(a.took) + a.missing
	half, last := "never", fmt.Sprintf("%d of %d never", a.missing, n)
	if len(a.took) > n/2 {
		half = fmt.Sprint(a.took[n/2].Milliseconds())
	}
	if a.missing == 0 {
		last = fmt.Sprint(a.took[n-1].Milliseconds())
	}
	return half + " / " + last
}

// differences names the documents that are not the same in the catalogs of followers and in the bucket, which is read
// again. Changes that are still on their way have a few seconds to arrive.
func (s *stage) differences(ctx context.Context, followers []*follower) (keys []string) {
	for deadline := time.Now().Add(5 * time.Second); ; pause(ctx, 200*time.Millisecond) {
		want := documents(must(mesh.LoadCatalog(ctx, s.nc, mesh.CatalogOptions{})))
		keys = nil
		for _, f := range followers {
			have := documents(f.catalog)
			for key := range want {
				if have[key] != want[key] {
					keys = append(keys, key)
				}
				delete(have, key)
			}
			keys = slices.AppendSeq(keys, maps.Keys(have))
		}
		if len(keys) == 0 || time.Now().After(deadline) {
			return keys
		}
	}
}

// documents are the contents of a catalog as text, by key.
func documents(c *mesh.Catalog) map[string]string {
	out := map[string]string{}
	for _, e := range c.All() {
		out[e.ID] = string(must(json.Marshal(e)))
	}
	id, revision := c.Revision()
	out["everything else"] = fmt.Sprint(id, "#", revision, string(must(json.Marshal([]any{c.Hosts(), c.Skills()}))))
	return out
}
