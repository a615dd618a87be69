package registry

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestCluster: three servers, a bucket with three replicas, and a registry on each of two servers. The leader's
// server stops.
func TestCluster(t *testing.T) {
	t.Parallel()
	servers := natstest.Cluster(t, 3, &server.Options{JetStream: true})
	b := &bed{T: t}
	connect := func(n int) *nats.Conn {
		return servers[n].Connect(nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	}
	b.nc = connect(2)
	one, _ := b.registryOn(connect(0), Config{Name: "one"})
	b.leading(one)
	two, _ := b.registryOn(connect(1), Config{Name: "two"})
	b.await("three replicas", func() bool { // immediately if the servers of the cluster have found each other
		info, err := b.bucket().info(b.timeout())
		return err == nil && info.Config.Replicas == 3
	})
	for n := range 20 {
		e := b.ext(fmt.Sprint("e", n), "1.0.0", fmt.Sprint("n", n), "get")
		e.up()
		e.sendHeartbeats()
	}
	all := func(r *Registry) func() bool {
		return func() bool {
			s := b.status(r)
			return s.Extensions[heartbeat.Ready] == 20 && s.SnapshotVersion.Revision > 0
		}
	}
	b.await("all are up", func() bool { return all(one)() && all(two)() && b.is("e19", heartbeat.Ready)() })
	b.await("the standby has seen all", func() bool { return b.status(one).Revision == b.status(two).Revision })

	start := time.Now()
	servers[0].Shutdown()
	e := b.ext("late", "1.0.0", "n", "get")
	e.announceOnRequest() // messages published while routes change can be lost
	e.up()
	e.sendHeartbeats()
	b.await("it is shown", func() bool { s, _ := b.spec("late"); return len(s.Tools) == 1 })
	t.Logf("the catalog was right %v after the leading registry's server went", time.Since(start))
	b.await("one of them leads", func() bool { return b.status(one).Leading != b.status(two).Leading })
	for n := range 20 {
		id := fmt.Sprint("e", n)
		// Around an election, requests can get lost, and an answer to a ping can be late: then the next one corrects the state.
		b.await(id+" is ready", b.is(id, heartbeat.Ready))
	}
}
