package serve

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
	"go.uber.org/goleak"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// duckServers runs n servers of one cluster, that in lame-duck mode close nothing for two seconds.
func duckServers(t *testing.T, n int, change ...func(*server.Options)) (servers []*server.Server) {
	t.Helper()
	others := goleak.IgnoreCurrent()
	t.Cleanup(func() { // after everything else
		if !t.Failed() {
			leaks.None(t, others)
		}
	})
	for i := range n {
		o := &server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true,
			LameDuckGracePeriod: 2 * time.Second, LameDuckDuration: 2100 * time.Millisecond,
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: -1},
		}
		for _, c := range change {
			c(o)
		}
		if i > 0 {
			o.Routes = server.RoutesFromStr("nats://" + servers[0].ClusterAddr().String())
		}
		s, err := server.NewServer(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(time.Minute) {
			t.Fatal("server not ready")
		}
		servers = append(servers, s)
	}
	natstest.Eventually(t, "the servers know each other", func() bool { return n == 1 || servers[0].NumRoutes() > 0 })
	return servers
}

func duckConn(t *testing.T, s *server.Server, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), append(append(append(natsconn.Defaults(), nats.Timeout(time.Minute)), options...),
		nats.CustomReconnectDelay(func(int) time.Duration { return 10 * time.Millisecond }), natsconn.Option())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// serveOn serves h as the extension duck until the test ends.
func serveOn(t *testing.T, nc *nats.Conn, h rpc.Handler) *Instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	node := NewPublisher(nc, PublisherOptions{})
	inst := node.Join(wire.Announce{ID: "duck", Version: "1.0.0"})
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(ctx) }) // these three end with ctx
	wg.Go(func() { inst.Run(ctx) })
	wg.Go(func() {
		if err := inst.Serve(ctx, h, Options{}); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	natstest.Eventually(t, "it is ready", func() bool { s, _ := inst.State(); return s == heartbeat.Ready })
	return inst
}

// echo answers every request with its params.
var echo = rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) { return r.Params, nil })

// request calls duck, and repeats the call while no instance is subscribed. A call that gets no answer fails the test.
func request(t *testing.T, nc *nats.Conn, method string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		m, err := nc.Request("ext.duck.rpc", jsonrpc.AppendRequest(nil, []byte("1"), method, json.RawMessage("{}")), time.Minute)
		switch {
		case errors.Is(err, nats.ErrNoResponders) && time.Now().Before(deadline):
			continue
		case err != nil:
			t.Errorf("a call of %s: %v", method, err)
		case !json.Valid(m.Data):
			t.Errorf("a call of %s: the answer is %q", method, m.Data)
		}
		return
	}
}
