package mesh

import (
	"context"
	"encoding/json"
	"flag"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // most of their time the tests wait; the command line overrides it
	leaks.Main(m)
}

// Expiring returns a context with a deadline in an hour, which passes when expire is called.
func Expiring(t *testing.T) (ctx context.Context, expire func()) {
	e := expiring{t.Context(), make(chan struct{})}
	return e, sync.OnceFunc(func() { close(e.passed) })
}

type expiring struct {
	context.Context
	passed chan struct{}
}

func (e expiring) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }
func (e expiring) Done() <-chan struct{}       { return e.passed }
func (e expiring) Err() error {
	select {
	case <-e.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// duckConn returns a connection as Connect makes it, which connects again soon.
func duckConn(t *testing.T, s *natstest.Server, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := Connect(s.ClientURL(), append(options, nats.Timeout(time.Minute), nats.CustomReconnectDelay(func(int) time.Duration { return 10 * time.Millisecond }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// serveOn serves h as the extension duck until the test ends.
func serveOn(t *testing.T, nc *nats.Conn, h rpc.Handler) *serve.Instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	node := serve.NewPublisher(nc, serve.PublisherOptions{})
	slot := node.Join(wire.Announce{ID: "duck", Version: "1.0.0"})
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(ctx) }) // these three end with ctx
	wg.Go(func() { slot.Run(ctx) })
	wg.Go(func() {
		if err := slot.Serve(ctx, h, serve.Options{}); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	natstest.Eventually(t, "it is ready", func() bool { s, _ := slot.State(); return s == heartbeat.Ready })
	return slot
}

func echoBox() *Toolbox {
	box := &Toolbox{Version: "1.0.0"}
	box.AddRaw("echo", "", nil, func(_ context.Context, r *rpc.Request) (json.RawMessage, error) { return r.Params, nil })
	return box
}
