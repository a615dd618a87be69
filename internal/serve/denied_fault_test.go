package serve

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
)

// TestListenAgainWhileNATSIsAway has a service go off the mesh and come back without a connection, as one does that was
// denied and tries again. When NATS is back, one queue member may be left in its place: others would be given calls
// that nobody takes up.
func TestListenAgainWhileNATSIsAway(t *testing.T) {
	for name, again := range map[string]struct {
		waits bool
		try   func(context.Context, *service)
	}{
		"after a denial":      {true, func(ctx context.Context, s *service) { s.listenAgain(ctx, 0) }},
		"lost in the midst":   {false, func(_ context.Context, s *service) { s.pause(); s.resume() }},
		"and lost once again": {false, func(_ context.Context, s *service) { s.pause(); s.resume(); s.pause(); s.resume() }},
	} {
		t.Run(name, func(t *testing.T) {
			srv := natstest.Start(t, &server.Options{Port: -1})
			nc, err := nats.Connect(srv.ClientURL(), nats.Timeout(time.Minute), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			s := serveOn(t, nc, echo).pub.streams.list()[0]
			srv.Stop()
			natstest.Eventually(t, "the connection is gone", func() bool { return !nc.IsConnected() })

			ctx, cancel := context.WithCancel(context.Background())
			tried := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() { again.try(ctx, s); close(tried) }) // ends with ctx
			t.Cleanup(func() { cancel(); wg.Wait() })
			if again.waits {
				select {
				case <-tried:
					t.Error("it tried without a connection")
				case <-time.After(100 * time.Millisecond):
				}
			} else {
				<-tried
			}
			srv.Restart(nil)
			natstest.Eventually(t, "the connection is back", nc.IsConnected)
			<-tried
			members := func() int {
				subs, err := srv.Subsz(&server.SubszOptions{Subscriptions: true, Test: "ext.duck.rpc"})
				if err != nil {
					t.Fatal(err)
				}
				return len(subs.Subs)
			}
			natstest.Eventually(t, "it is one queue member", func() bool { return members() == 1 })
			for range 20 {
				request(t, nc, "ping")
			}
		})
	}
}
