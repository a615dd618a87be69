package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/bench/internal/wait"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// canary is an extension of this program whose state has a number in its reason. A fault that changes nothing in
// the catalog itself, the death of a server or a registry, is followed by a change of the canary: the catalog is
// right when that shows.
type canary struct {
	nc   *nats.Conn
	slot *mesh.Slot
	n    atomic.Int64
}

func (s *stage) startCanary() error {
	nc, err := s.connect("canary", 0)
	if err != nil {
		return err
	}
	node := mesh.NewNode(nc, mesh.NodeOptions{})
	c := &canary{nc: nc, slot: node.Join(mesh.Announce{ID: canaryID, Version: "1.0.0", Features: []string{mesh.FeatureInstance}})}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(ctx) })   // ends with ctx, in close
	wg.Go(func() { c.slot.Run(ctx) }) // ends with ctx, in close
	wg.Go(func() { c.slot.Serve(ctx, echoBox(), mesh.ServeOptions{}) })
	s.stop = append(s.stop, func() { cancel(); wg.Wait(); nc.Close() })
	s.canary = c
	return nil
}

// sing changes the canary.
func (c *canary) sing() {
	c.slot.SetState(heartbeat.Ready, fmt.Sprintf("change %d", c.n.Add(1)))
}

// keepSinging changes the canary all the time, until the func it returns is called: whoever leads has always
// something to write.
func (c *canary) keepSinging(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { // ends with cancel
		for wait.For(ctx, 3*time.Millisecond) {
			c.sing()
		}
	})
	return func() { cancel(); wg.Wait() }
}

// shown reports whether a catalog has the last change.
func (c *canary) shown(in *mesh.Catalog) bool {
	want := c.n.Load()
	for _, i := range instances(in, canaryID) {
		number, _ := strings.CutPrefix(i.Reason, "change ")
		if n, err := strconv.ParseInt(number, 10, 64); i.State == heartbeat.Ready && (err == nil && n >= want || want == 0) {
			return true
		}
	}
	return false
}
