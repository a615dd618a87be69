package natsconn_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/natstest"
)

// TestMove: after the notice of lame duck mode a request in flight can be completed, new requests wait, services are paused
// and resumed, and the connection is on the other server before the first one closes it.
func TestMove(t *testing.T) {
	servers := natstest.Cluster(t, 2, &server.Options{LameDuckGracePeriod: time.Minute, LameDuckDuration: 61 * time.Second})
	nc := connect(t, servers[0])
	natstest.Eventually(t, "the connection has the address of the other server", func() bool { return len(nc.Servers()) == 2 })
	traffic := natsconn.TrafficOf(nc)
	traffic.SetWait(time.Minute)                                                    // on a busy machine the calls of Begin below can come later than the default
	if err := traffic.Begin(t.Context(), time.Now().Add(time.Minute)); err != nil { // a request in flight
		t.Fatal(err)
	}
	var mu sync.Mutex
	var events []string
	event := func(s string) { mu.Lock(); defer mu.Unlock(); events = append(events, s) }
	paused, resumed := make(chan struct{}), make(chan struct{})
	defer traffic.OnMove(func(time.Time) func() {
		event("paused on " + nc.ConnectedServerName())
		close(paused)
		return func() { event("resumed on " + nc.ConnectedServerName()); close(resumed) }
	})()
	var leaving sync.WaitGroup
	leaving.Go(servers[0].LameDuckShutdown) // ends with Shutdown
	defer leaving.Wait()
	defer servers[0].Shutdown()
	<-paused
	if err := traffic.Begin(t.Context(), time.Now()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a request without time: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := traffic.Begin(cancelled, time.Now().Add(time.Minute)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled request: %v", err)
	}
	traffic.End()
	if err := traffic.Begin(t.Context(), time.Now().Add(time.Minute)); err != nil {
		t.Errorf("a request that waits: %v", err)
	}
	traffic.End()
	<-resumed
	mu.Lock()
	defer mu.Unlock()
	if len(events) != 2 || events[0] != "paused on n0" || events[1] != "resumed on n1" {
		t.Errorf("events: %q", events)
	}
	if n := nc.Stats().Reconnects; n != 1 {
		t.Errorf("%d reconnects", n)
	}
}

// TestStays: without another server, or while it is drained, the connection is not moved. A handler that was set before is
// called.
func TestStays(t *testing.T) {
	t.Parallel()
	for name, drained := range map[string]bool{"no other server": false, "drained": true} {
		t.Run(name, func(t *testing.T) {
			var servers []*natstest.Server
			options := &server.Options{Port: -1, LameDuckGracePeriod: time.Minute, LameDuckDuration: 61 * time.Second}
			if drained {
				servers = natstest.Cluster(t, 2, options)
			} else {
				servers = append(servers, natstest.Start(t, options))
			}
			notified := make(chan struct{})
			nc := connect(t, servers[0], nats.LameDuckModeHandler(func(*nats.Conn) { close(notified) }))
			if drained {
				if _, err := nc.SubscribeSync("x"); err != nil { // and a message that nothing takes: the drain does not end
					t.Fatal(err)
				}
				if err := errors.Join(nc.Publish("x", nil), nc.Flush(), nc.Drain()); err != nil {
					t.Fatal(err)
				}
			}
			var leaving sync.WaitGroup
			leaving.Go(servers[0].LameDuckShutdown) // ends with Shutdown
			defer leaving.Wait()
			defer servers[0].Shutdown()
			<-notified
			natsconn.Move(nc)
			if n := nc.Stats().Reconnects; n != 0 || nc.IsClosed() {
				t.Errorf("%d reconnects; the connection is %s", n, nc.Status())
			}
		})
	}
}

func connect(t *testing.T, s *natstest.Server, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), append(append(natsconn.Defaults(), options...), natsconn.Option())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}
