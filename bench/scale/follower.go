package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/bench/internal/wait"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// playFollower is a process that follows the catalog and says in its log how long it took to have all of it, and how
// much it keeps.
func playFollower(ctx context.Context) error {
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.Name("weighed follower"))
	if err != nil {
		return err
	}
	defer nc.Close()
	before := heap()
	c := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- c.Run(ctx) }() // ends with ctx; waited for below
	err = c.WaitSynced(ctx)
	took := time.Since(start)
	if err == nil {
		fmt.Fprintf(os.Stderr, "weighed %d %d %d\n", took, len(c.All()), heap()-before)
		runtime.KeepAlive(c)
		<-ctx.Done()
	}
	cancel()
	<-done
	return err
}

// heap is what lives on the heap, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// weigh starts a follower as a process of its own.
func (s *stage) weigh(ctx context.Context, o options, r *report) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := proc.Start(s.dir, "follower", []string{roleVar + "=follower", "NATS_URL=" + s.url}, self)
	if err != nil {
		return err
	}
	defer p.End()
	var took time.Duration
	var size, bytes int64
	err = wait.Until(ctx, patience, "a follower has all", func() error {
		for _, line := range p.Said(0, "weighed ") {
			f := strings.Fields(line)
			if len(f) != 4 {
				continue
			}
			var nums [3]int64
			for i := range nums {
				if nums[i], err = strconv.ParseInt(f[i+1], 10, 64); err != nil {
					return err
				}
			}
			took, size, bytes = time.Duration(nums[0]), nums[1], nums[2]
			return nil
		}
		return fmt.Errorf("it says nothing in %s", filepath.Join(s.dir, "follower.log"))
	})
	if err != nil {
		return err
	}
	if int(size) != s.fleet.size {
		return fmt.Errorf("a follower has %d extensions of %d", size, s.fleet.size)
	}
	now, _ := proc.Memory(p.PID())
	r.row("a follower is started: it has all after", fmt.Sprintf("**%s**", ms(took)))
	r.row("a follower's memory", fmt.Sprintf("**%.1f kB an extension** on the heap; the process has %.0f MB", float64(bytes)/1000/float64(size), now))
	return nil
}

// compare counts the documents in which followers and a fresh reading of the bucket are not the same.
func compare(ctx context.Context, nc *nats.Conn, catalogs []*mesh.Catalog) (differ int, err error) {
	fresh, err := mesh.LoadCatalog(ctx, nc, mesh.CatalogOptions{})
	if err != nil {
		return 0, err
	}
	want, err := documents(fresh)
	if err != nil {
		return 0, err
	}
	for _, c := range catalogs {
		have, err := documents(c)
		if err != nil {
			return 0, err
		}
		for key, doc := range want {
			if have[key] != doc {
				differ++
			}
			delete(have, key)
		}
		differ += len(have)
	}
	return differ, nil
}

// documents are the documents of a catalog by id, as text.
func documents(c *mesh.Catalog) (map[string]string, error) {
	out := map[string]string{}
	for _, e := range c.All() {
		data, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		out[e.ID] = string(data)
	}
	return out, nil
}
