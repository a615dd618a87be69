package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// serverWith runs NATS with one user, on a port, or on a free one.
func serverWith(t *testing.T, port int, password string) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true, Username: "u", Password: password})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not come up")
	}
	return s
}

// TestServeEndsWithItsConnection closes a connection with a call in flight: Serve must return. Closing it after ctx has
// ended is not an error.
func TestServeEndsWithItsConnection(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(t *testing.T, s *server.Server, nc *nats.Conn, cancel context.CancelFunc)
		want error
	}{
		"closed by its owner": {func(_ *testing.T, _ *server.Server, nc *nats.Conn, _ context.CancelFunc) { nc.Close() }, nats.ErrConnectionClosed},
		"another password": {func(t *testing.T, s *server.Server, _ *nats.Conn, _ context.CancelFunc) {
			port := s.Addr().(*net.TCPAddr).Port
			s.Shutdown()
			s.WaitForShutdown()
			serverWith(t, port, "another")
		}, nats.ErrConnectionClosed},
		"closed behind ctx": {func(_ *testing.T, _ *server.Server, nc *nats.Conn, cancel context.CancelFunc) { cancel(); nc.Close() }, nil},
		"only ctx":          {func(_ *testing.T, _ *server.Server, _ *nats.Conn, cancel context.CancelFunc) { cancel() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := serverWith(t, -1, "p")
			connect := func() *nats.Conn {
				nc, err := nats.Connect(s.ClientURL(), nats.UserInfo("u", "p"), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
					nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(nc.Close)
				return nc
			}
			entered, release := make(chan struct{}), make(chan struct{})
			h := rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
				switch r.Method {
				case "initialize":
					return json.RawMessage(`{"server_version":"1.0.0","tools":[],"hooks":[]}`), nil
				case "tools/wait":
					close(entered)
					<-release
				}
				return nil, nil
			})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			nc := connect()
			done := make(chan error, 1)
			go func() { // ends with ctx, or the connection
				done <- mesh.Serve(ctx, nc, mesh.Service{ID: "greeter", Version: "1.0.0", Handler: h})
			}()
			caller := connect()
			client := mesh.NewClient(caller, mesh.ClientOptions{})
			eventually(t, "it answers", func() bool { _, err := client.CallExt(t.Context(), "greeter", "ping", nil); return err == nil })
			if err := caller.PublishRequest("ext.greeter.rpc", caller.NewInbox(), []byte(`{"id":1,"method":"tools/wait"}`)); err != nil {
				t.Fatal(err)
			}
			<-entered
			tt.end(t, s, nc, cancel)
			close(release) // not before: Serve waits for it, so what has happened has happened to it
			select {
			case err := <-done:
				if !errors.Is(err, tt.want) {
					t.Errorf("Serve returned %v, want %v", err, tt.want)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("Serve has not returned")
			}
		})
	}
}

// TestNodeEndsWithItsConnection closes the connection of a Node when it has begun to listen, more or less: it may be
// before it could hear of that.
func TestNodeEndsWithItsConnection(t *testing.T) {
	connect := startServer(t)
	for n := range 50 {
		nc := connect()
		done := make(chan error, 1)
		go func() { done <- serve.NewPublisher(nc, serve.PublisherOptions{}).Run(t.Context()) }() // ends with the connection
		for nc.NumSubscriptions() <= n%3 {                                                        // it makes three
			runtime.Gosched()
		}
		nc.Close()
		select {
		case err := <-done:
			if !errors.Is(err, nats.ErrConnectionClosed) {
				t.Fatalf("Run returned %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("Run has not returned")
		}
	}
}
