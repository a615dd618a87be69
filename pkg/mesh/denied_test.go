package mesh_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestDeniedSubscription serves with a user that may not subscribe to the subject of calls, or of the instance. The instance
// must not be ready until it has the permission.
func TestDeniedSubscription(t *testing.T) {
	t.Parallel()
	s, deny := denying(t, "ext.x.rpc")
	var mu sync.Mutex
	var told []error
	nc, err := nats.Connect(s.ClientURL(), nats.Timeout(time.Minute), nats.UserInfo("u", "p"), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { mu.Lock(); told = append(told, err); mu.Unlock() }),
		natsconn.Option())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	heard, err := nc.SubscribeSync(wire.DefaultPrefix + ".registry.heartbeat.x")
	if err != nil {
		t.Fatal(err)
	}
	node := serve.NewPublisher(nc, serve.PublisherOptions{})
	slot := node.Join(wire.Announce{ID: "x", Version: "1.0.0"})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(ctx) }) // these three end with ctx
	wg.Go(func() { slot.Run(ctx) })
	served, began := make(chan struct{}), time.Now()
	wg.Go(func() { slot.Serve(ctx, rpc.HandlerFunc(echo), serve.Options{}); close(served) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	is := func(want heartbeat.State, reason string) func() bool {
		return func() bool { s, r := slot.State(); return s == want && strings.Contains(r, reason) }
	}
	natstest.Eventually(t, "it says that it may not listen", is(heartbeat.Failed, "subscription to ext.x.rpc;"))
	if said := beatsUntil(t, heard, heartbeat.Failed); slices.Contains(said, heartbeat.Ready) {
		// It waits a fifth of a second for a refusal, which may come later on a busy machine.
		if took := time.Since(began); took < 200*time.Millisecond {
			t.Errorf("it was ready before it was allowed to be: %v, within %s", said, took)
		}
		refused := func() int { mu.Lock(); defer mu.Unlock(); return len(told) }
		before := refused()
		natstest.Eventually(t, "it is refused again, and still failed", func() bool {
			return refused() > before && is(heartbeat.Failed, "subscription to ext.x.rpc;")()
		})
	}

	for _, tt := range []struct {
		deny, reason string
		state        heartbeat.State
	}{
		{"ext.x.rpc.*", "subscription to ext.x.rpc." + slot.Instance() + ";", heartbeat.Failed},
		{"ext.y.rpc", "", heartbeat.Ready},
		{"ext.x.rpc", "subscription to ext.x.rpc;", heartbeat.Failed},
		{"ext.x.cancel", "", heartbeat.Ready}, // calls work without cancellations
		{"ext.x.ack.*", "subscription to ext.x.ack.*;", heartbeat.Failed},
		{"ext.z.rpc", "", heartbeat.Ready},
	} {
		deny(tt.deny)
		natstest.Eventually(t, "without "+tt.deny+" it is "+string(tt.state), is(tt.state, tt.reason))
	}
	caller, err := nats.Connect(s.ClientURL(), nats.Timeout(time.Minute), nats.UserInfo("u", "p"))
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	if _, err := mesh.NewClient(caller, mesh.ClientOptions{}).Call(t.Context(), "x/echo", nil); err != nil {
		t.Errorf("now that it is ready: %v", err)
	}
	beatsUntil(t, heard, heartbeat.Ready)
	cancel()
	<-served
	mu.Lock()
	defer mu.Unlock()
	if len(told) == 0 {
		t.Error("the connection's own handler was not told")
	}
}

// TestDeniedWithOthers serves twice on one connection. The one that stays handles its denials when the other has ended, in
// either order, and the connection's own handler is called once for an error.
func TestDeniedWithOthers(t *testing.T) {
	for _, stays := range []string{"a", "b"} {
		t.Run(stays, func(t *testing.T) {
			s, deny := denying(t)
			told := make(chan error, 100)
			nc, err := nats.Connect(s.ClientURL(), nats.Timeout(time.Minute), nats.UserInfo("u", "p"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
				if errors.Is(err, nats.ErrSlowConsumer) { // not the denials
					told <- err
				}
			}), natsconn.Option())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			slots, ends := map[string]*serve.Instance{}, map[string]func(){}
			for _, id := range []string{"a", "b"} {
				node := serve.NewPublisher(nc, serve.PublisherOptions{})
				slot := node.Join(wire.Announce{ID: id, Version: "1.0.0"})
				nodeCtx, stopNode := context.WithCancel(context.Background())
				ctx, stop := context.WithCancel(context.Background())
				var run, life sync.WaitGroup
				run.Go(func() { node.Run(nodeCtx) }) // these two end with their contexts, below
				life.Go(func() { slot.Serve(ctx, rpc.HandlerFunc(echo), serve.Options{}) })
				slots[id] = slot
				ends[id] = sync.OnceFunc(func() { stop(); life.Wait(); stopNode(); run.Wait() })
				t.Cleanup(ends[id])
				natstest.Eventually(t, "it is ready", func() bool { state, _ := slot.State(); return state == heartbeat.Ready })
			}
			for id, end := range ends {
				if id != stays {
					end()
				}
			}
			deny("ext." + stays + ".rpc")
			natstest.Eventually(t, "it says that it may not listen", func() bool { state, _ := slots[stays].State(); return state == heartbeat.Failed })
			ends[stays]()
			nc.ErrorHandler()(nc, nil, nats.ErrSlowConsumer)
			if len(told) != 1 {
				t.Errorf("the connection's own handler was told %d times of one error", len(told))
			}
		})
	}
}

// denying runs a server with a user u, password p, who may not subscribe to these subjects, until deny sets others.
func denying(t *testing.T, subjects ...string) (s *server.Server, deny func(subjects ...string)) {
	t.Helper()
	users := func(deny ...string) []*server.User {
		return []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
			Subscribe: &server.SubjectPermission{Allow: []string{">"}, Deny: deny}}}}
	}
	opts := &server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, AuthTimeout: 60, Users: users(subjects...)}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not come up")
	}
	return s, func(subjects ...string) {
		t.Helper()
		changed := opts.Clone()
		changed.Users = users(subjects...)
		if err := s.ReloadOptions(changed); err != nil {
			t.Fatal(err)
		}
	}
}

// beatsUntil are the states in the beats that come, up to the first with this one.
func beatsUntil(t *testing.T, sub *nats.Subscription, last heartbeat.State) (states []heartbeat.State) {
	t.Helper()
	for !slices.Contains(states, last) {
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("no beat says %s, only %v: %v", last, states, err)
		}
		b, err := heartbeat.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, b.State)
	}
	return states
}
