package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// slowLink is a dialer of connections that read 100 KB a second.
type slowLink struct{ srv *server.Server }

type slowConn struct{ net.Conn }

func (l slowLink) Dial(string, string) (net.Conn, error) {
	c, err := l.srv.InProcessConn()
	return slowConn{c}, err
}

func (c slowConn) Read(p []byte) (int, error) {
	time.Sleep(100 * time.Millisecond) // fake time
	return c.Conn.Read(p[:min(len(p), 10_000)])
}

// serverInBubble runs a server in the bubble of the test, and returns a function that connects to it.
func serverInBubble(t *testing.T) (srv *server.Server, connect func(o nats.Option) *nats.Conn) {
	t.Helper()
	t.Cleanup(func() { time.Sleep(time.Second) }) // fake time: the last reads of the connections
	srv, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, WriteDeadline: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	return srv, func(o nats.Option) *nats.Conn {
		nc, err := nats.Connect("", o, nats.Timeout(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
}

// TestSlowLink: an answer takes 9 s to arrive, and so do the keepalives that come behind it. The call is not silent meanwhile; one
// that gets nothing is.
func TestSlowLink(t *testing.T) {
	natstest.InBubble(t, func(t *testing.T) {
		srv, connect := serverInBubble(t)
		instance := connect(nats.InProcessServer(srv))
		large := `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", 900_000) + `"}`
		for subject, answer := range map[string]string{"ext.large.rpc": large, "ext.silent.rpc": ""} {
			if _, err := instance.Subscribe(subject, func(m *nats.Msg) {
				accepted := nats.NewMsg(m.Reply)
				accepted.Header.Set(wire.HeaderFrame, wire.FrameAccepted)
				if err := instance.PublishMsg(accepted); err != nil {
					t.Error(err)
				}
				if answer != "" {
					m.Respond([]byte(answer))
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := instance.Flush(); err != nil {
			t.Fatal(err)
		}
		client := NewClient(connect(nats.SetCustomDialer(slowLink{srv})), ClientOptions{})
		call := func(id string) (json.RawMessage, time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			result, err := client.CallStream(ctx, id+"/x", nil, nil)
			return result, time.Since(began), err
		}
		if result, took, err := call("large"); err != nil || len(result) < 900_000 || took < wire.SilenceLimit {
			t.Errorf("%d bytes after %v, %v", len(result), took, err)
		}
		here, called := connect(nats.InProcessServer(srv)), make(chan error, 1)
		other := NewClient(here, ClientOptions{})
		if _, err := here.Subscribe("work", func(*nats.Msg) { // which itself keeps a subscription of the connection busy
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := other.CallStream(ctx, "silent/x", nil, nil)
			called <- err
		}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := here.Publish("work", nil); err != nil {
			t.Fatal(err)
		}
		if err, took := <-called, time.Since(began); !errors.Is(err, rpc.CodeExited) || took > wire.SilenceLimit+time.Second {
			t.Errorf("in a callback: %v after %v", err, took)
		}
		if _, took, err := call("silent"); !errors.Is(err, rpc.CodeExited) || took > wire.SilenceLimit+2*time.Second {
			t.Errorf("without an answer: %v after %v", err, took)
		}
	})
}
