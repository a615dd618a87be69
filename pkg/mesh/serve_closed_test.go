package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestServeEndsWithItsConnection closes a connection with a call in flight: Serve must return. Closing it after ctx has
// ended is not an error.
func TestServeEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end  func(s *natstest.Server, nc *nats.Conn, cancel context.CancelFunc)
		want error
	}{
		"closed by its owner": {func(_ *natstest.Server, nc *nats.Conn, _ context.CancelFunc) { nc.Close() }, nats.ErrConnectionClosed},
		"another password": {func(s *natstest.Server, _ *nats.Conn, _ context.CancelFunc) {
			s.Restart(func(o *server.Options) { o.Password = "another" })
		}, nats.ErrConnectionClosed},
		"closed behind ctx": {func(_ *natstest.Server, nc *nats.Conn, cancel context.CancelFunc) { cancel(); nc.Close() }, nil},
		"only ctx":          {func(_ *natstest.Server, _ *nats.Conn, cancel context.CancelFunc) { cancel() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := natstest.Start(t, &server.Options{Port: -1, Username: "u", Password: "p"})
			connect := func() *nats.Conn {
				return s.Connect(nats.UserInfo("u", "p"), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
					nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
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
			natstest.Eventually(t, "it answers", func() bool { _, err := client.CallExt(t.Context(), "greeter", "ping", nil); return err == nil })
			if err := caller.PublishRequest("ext.greeter.rpc", caller.NewInbox(), []byte(`{"id":1,"method":"tools/wait"}`)); err != nil {
				t.Fatal(err)
			}
			<-entered
			tt.end(s, nc, cancel)
			close(release) // not before: Serve waits for it, so what has happened has happened to it
			select {
			case err := <-done:
				if !errors.Is(err, tt.want) {
					t.Errorf("Serve returned %v, want %v", err, tt.want)
				}
			case <-time.After(time.Minute):
				t.Fatal("Serve has not returned")
			}
		})
	}
}

// TestNodeEndsWithItsConnection closes the connection of a Publisher immediately before or after it has subscribed: it may not
// yet be waiting for the end of the connection.
func TestNodeEndsWithItsConnection(t *testing.T) {
	connect := startServer(t)
	for n := range 50 {
		nc := connect()
		done := make(chan error, 1)
		go func() { done <- serve.NewPublisher(nc, serve.PublisherOptions{}).Run(t.Context()) }() // ends with the connection
		for nc.NumSubscriptions() < n%2 {                                                         // it makes one
			runtime.Gosched()
		}
		nc.Close()
		select {
		case err := <-done:
			if !errors.Is(err, nats.ErrConnectionClosed) {
				t.Fatalf("Run returned %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("Run has not returned")
		}
	}
}
