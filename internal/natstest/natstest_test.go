package natstest

import (
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

func TestStart(t *testing.T) {
	for name, options := range map[string]*server.Options{
		"no options":        nil,
		"any port":          {Port: -1},
		"JetStream":         {JetStream: true},
		"JetStream, a port": {Port: -1, JetStream: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := Start(t, options)
			nc := s.Connect()
			checkRoundTrip(t, nc, nc)
			if listens := s.Addr() != nil; listens != (options != nil && options.Port != 0) {
				t.Errorf("it listens: %v", listens)
			}
			if s.JetStreamEnabled() != (options != nil && options.JetStream) {
				t.Errorf("JetStream is enabled: %v", s.JetStreamEnabled())
			}
		})
	}
}

// TestRestart restarts a server while a listener holds its port for a moment.
func TestRestart(t *testing.T) {
	s := Start(t, &server.Options{Port: -1, JetStream: true})
	address := s.Addr().String()
	nc := s.Connect(nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond))
	s.Restart(nil)
	s.Restart(func(*server.Options) { // between stop and start
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(50*time.Millisecond, func() { l.Close() })
	})
	if s.Addr().String() != address {
		t.Errorf("it listens on %s, before on %s", s.Addr(), address)
	}
	Eventually(t, "the connection is back", func() bool { return nc.IsConnected() })
	checkRoundTrip(t, nc, s.Connect())
}

func TestCluster(t *testing.T) {
	servers := Cluster(t, 3, &server.Options{JetStream: true})
	checkRoundTrip(t, servers[0].Connect(), servers[2].Connect())
}

// checkRoundTrip wants a message of the one connection to reach the other.
func checkRoundTrip(t *testing.T, from, to *nats.Conn) {
	t.Helper()
	sub, err := to.SubscribeSync("a.b")
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Flush(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "a message arrives", func() bool { // on a cluster a subscription takes a moment to get around
		if err := from.Publish("a.b", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := from.Flush(); err != nil {
			t.Fatal(err)
		}
		m, err := sub.NextMsg(100 * time.Millisecond)
		return err == nil && string(m.Data) == "x"
	})
}
