package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestLameDuckMoves puts the server of a service and of a client into lame duck mode while there are calls in flight. No
// call is lost, and both are on the other server when the first one has stopped.
//
// One call is an exception: a message of the third caller that its server had sent over the route before it received that
// the service had unsubscribed there. NATS drops such messages whenever a subscription ends in a cluster
// (docs/rough_edges.md).
func TestLameDuckMoves(t *testing.T) {
	t.Parallel()
	servers := natstest.Cluster(t, 2, &server.Options{LameDuckGracePeriod: time.Minute, LameDuckDuration: 61 * time.Second})
	nc := duckConn(t, servers[0])
	serveOn(t, nc, echoBox())
	natsconn.TrafficOf(nc).SetWait(time.Minute) // on a busy machine a call can take longer than the default
	moved := make(chan struct{})
	nc.SetReconnectHandler(func(*nats.Conn) { close(moved) })
	// A busy machine might turn the two around, and the second would be as the third then.
	near := duckConn(t, servers[0], nats.LameDuckModeHandler(func(*nats.Conn) {
		select {
		case <-moved:
		case <-t.Context().Done():
		}
	}))
	natsconn.TrafficOf(near).SetWait(time.Minute)
	var wg sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	for _, c := range []struct {
		*Client
		mayLose int
	}{
		{NewClient(near, ClientOptions{}), 0},
		{NewClient(nc, ClientOptions{}), 0},
		{NewClient(duckConn(t, servers[1]), ClientOptions{Timeout: 10 * time.Second}), 1},
	} {
		wg.Go(func() { // ends with end
			for n := 0; ctx.Err() == nil; n++ {
				var got json.RawMessage
				err := error(rpc.CodeUnavailable)
				// The client tries again for 210 ms. On a busy machine the service may take longer to come back.
				for began := time.Now(); errors.Is(err, rpc.CodeUnavailable) && time.Since(began) < time.Minute; {
					got, err = c.Call(context.WithoutCancel(ctx), "duck/echo", json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)))
				}
				if c.mayLose > 0 && errors.Is(err, rpc.CodeTimeout) {
					c.mayLose--
				} else if err != nil || string(got) != fmt.Sprintf(`{"n":%d}`, n) {
					t.Errorf("call %d: %s, %v", n, got, err)
					return
				}
			}
		})
	}
	var down sync.WaitGroup
	down.Go(servers[0].LameDuckShutdown) // ends when the server is shut down
	natstest.Eventually(t, "both are on the other server", func() bool {
		return nc.ConnectedServerName() == "n1" && near.ConnectedServerName() == "n1"
	})
	servers[0].Shutdown()
	down.Wait()
	end()
	wg.Wait()
	for _, c := range []*nats.Conn{nc, near} {
		if c.ConnectedServerName() != "n1" || c.Stats().Reconnects != 1 {
			t.Errorf("on %q after %d reconnects, want n1 and 1", c.ConnectedServerName(), c.Stats().Reconnects)
		}
	}
}
