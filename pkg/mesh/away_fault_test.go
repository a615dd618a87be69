package mesh_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestStopWhileNATSIsAway stops a service while its connection is down. When NATS is back, no subscription of the service
// may be left: the server would give calls to it, and they would be lost.
func TestStopWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]nats.Option{
		"buffered":   {nats.ReconnectWait(300 * time.Millisecond), nats.MaxReconnects(-1)},
		"unbuffered": {nats.ReconnectWait(300 * time.Millisecond), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1)},
	} {
		t.Run(name, func(t *testing.T) {
			s := natstest.Start(t, &server.Options{Port: -1})
			nc := s.Connect(opts...)
			_, stop := serveWeather(t, nc, weather, rpc.HandlerFunc(echo), serve.Options{})
			s.Restart(func(*server.Options) { // between stop and start
				natstest.Eventually(t, "the connection is gone", func() bool { return !nc.IsConnected() })
				stop()
			})
			natstest.Eventually(t, "the connection is back", nc.IsConnected)
			caller := s.Connect()
			for {
				m, err := caller.Request("ext.weather.rpc", []byte(`{"id":1,"method":"tools/x"}`), time.Minute)
				if errors.Is(err, nats.ErrNoResponders) {
					break
				}
				if err != nil || !strings.Contains(string(m.Data), `"ran":"no"`) {
					t.Fatalf("a call to a service that has stopped: %v, %v, want no responders", m, err)
				}
			}
		})
	}
}
