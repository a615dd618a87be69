package mesh_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestStopWhileNATSIsAway stops a service while its connection is down. When NATS is back, no subscription of the service
// may be left: the server would give calls to it, and they would be lost.
func TestStopWhileNATSIsAway(t *testing.T) {
	for name, opts := range map[string][]nats.Option{
		"buffered":   {nats.ReconnectWait(300 * time.Millisecond), nats.MaxReconnects(-1)},
		"unbuffered": {nats.ReconnectWait(300 * time.Millisecond), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1)},
	} {
		t.Run(name, func(t *testing.T) {
			s, port := listen(t, -1)
			url := fmt.Sprintf("nats://127.0.0.1:%d", port)
			nc, err := nats.Connect(url, opts...)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			_, stop := serveWeather(t, nc, weather, rpc.HandlerFunc(echo), serve.Options{})
			s.Shutdown()
			s.WaitForShutdown()
			eventually(t, "the connection is gone", func() bool { return !nc.IsConnected() })
			stop()
			s, _ = listen(t, port)
			defer s.Shutdown()
			eventually(t, "the connection is back", nc.IsConnected)
			caller, err := nats.Connect(url)
			if err != nil {
				t.Fatal(err)
			}
			defer caller.Close()
			for {
				m, err := caller.Request("ext.weather.rpc", []byte(`{"id":1,"method":"tools/x"}`), 10*time.Second)
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

func listen(t *testing.T, port int) (*server.Server, int) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not come up")
	}
	return s, s.Addr().(*net.TCPAddr).Port
}
