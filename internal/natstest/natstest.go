// Package natstest runs NATS servers for tests, in the process of the test: one server, a cluster of three, connections
// to them, and a wait for a condition.
package natstest

import (
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/freeport"
)

// limit bounds every wait of this package. It is far above what an idle machine needs, so that a loaded one does not
// fail a test.
const limit = time.Minute

// Server is a NATS server in the process of a test.
type Server struct {
	*server.Server
	t       testing.TB
	options *server.Options
}

// Start runs a server with the given options until the test ends; nil is the same as &server.Options{}. Without a port
// the server does not listen: only Connect reaches it. Port -1 is any free port on 127.0.0.1. With JetStream and without
// a StoreDir its files are in a directory that is deleted after the test.
func Start(t testing.TB, options *server.Options) *Server {
	t.Helper()
	s := &Server{t: t, options: complete(t, options)}
	s.start()
	t.Cleanup(s.Stop)
	return s
}

// complete returns a copy of options with what every server of a test has.
func complete(t testing.TB, options *server.Options) *server.Options {
	if options == nil {
		options = &server.Options{}
	}
	o := options.Clone()
	o.NoLog, o.NoSigs = true, true
	if o.Port == 0 {
		o.DontListen = true
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.Port == -1 { // not one that the system gives to other programs while Restart has stopped the server
		o.Port = freeport.Port(t)
	}
	if o.JetStream && o.StoreDir == "" {
		o.StoreDir = t.TempDir()
	}
	if o.AuthTimeout == 0 {
		o.AuthTimeout = limit.Seconds()
	}
	if o.TLSTimeout == 0 {
		o.TLSTimeout = limit.Seconds()
	}
	if o.WriteDeadline == 0 {
		o.WriteDeadline = limit
	}
	return o
}

// start starts the server. A port that was free a moment ago can be in use for some milliseconds: a child that another
// test starts holds a copy of every descriptor of this process from its fork to its exec. So listening is tried again.
func (s *Server) start() {
	s.t.Helper()
	Eventually(s.t, "the NATS server listens", func() bool {
		var ok bool
		s.Server, ok = listen(s.t, s.options)
		return ok
	})
	if !s.ReadyForConnections(limit) {
		s.t.Fatal("the NATS server is not ready for connections")
	}
}

// listen starts a server and waits until it listens where its options want it to. It returns false, and a server that
// has stopped, if a port is in use.
func listen(t testing.TB, options *server.Options) (*server.Server, bool) {
	t.Helper()
	srv, err := server.NewServer(options.Clone())
	if err != nil {
		t.Fatal(err)
	}
	var fatal fatalLog
	srv.SetLogger(&fatal, false, false)
	srv.Start()
	Eventually(t, "the NATS server listens or fails", func() bool {
		clients := options.DontListen || srv.Addr() != nil
		routes := options.Cluster.Port == 0 || srv.ClusterAddr() != nil
		return fatal.Load() || clients && routes
	})
	if fatal.Load() {
		srv.Shutdown()
		srv.WaitForShutdown()
		return srv, false
	}
	return srv, true
}

// fatalLog is a server's logger that remembers only whether the server failed. A program would exit then.
type fatalLog struct{ atomic.Bool }

func (l *fatalLog) Fatalf(string, ...any) { l.Store(true) }
func (*fatalLog) Errorf(string, ...any)   {}
func (*fatalLog) Warnf(string, ...any)    {}
func (*fatalLog) Noticef(string, ...any)  {}
func (*fatalLog) Debugf(string, ...any)   {}
func (*fatalLog) Tracef(string, ...any)   {}

// Stop stops the server and waits until it has ended. It may be called more than once.
func (s *Server) Stop() {
	s.Shutdown()
	s.WaitForShutdown()
}

// Restart stops the server and starts it again on the same port and with the same files. change, unless it is nil,
// changes the options first.
func (s *Server) Restart(change func(*server.Options)) {
	s.t.Helper()
	if addr := s.Addr(); addr != nil && !s.options.DontListen {
		if _, err := fmt.Sscanf(addr.String(), s.options.Host+":%d", &s.options.Port); err != nil {
			s.t.Fatalf("the port of %s: %v", addr, err)
		}
	}
	s.Stop()
	if change != nil {
		change(s.options)
	}
	s.start()
}

// Connect returns a connection to the server, which is closed when the test ends.
func (s *Server) Connect(options ...nats.Option) *nats.Conn {
	s.t.Helper()
	options = append([]nats.Option{nats.Timeout(limit), nats.SyncQueueLen(4096)}, options...) // as the programs do
	address := ""
	if s.options.DontListen {
		options = append(options, nats.InProcessServer(s))
	} else {
		address = s.ClientURL()
	}
	nc, err := nats.Connect(address, options...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// JetStream returns JetStream on a connection. Its requests have a minute to succeed, unless their context ends earlier.
func JetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(limit))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// Cluster runs a cluster of n servers with the given options until the test ends. With JetStream it returns when the
// cluster has a leader and all servers are its peers.
func Cluster(t testing.TB, n int, options *server.Options) []*Server {
	t.Helper()
	var servers []*Server
	Eventually(t, "the servers of the cluster listen", func() bool {
		servers = startCluster(t, n, options)
		return servers != nil
	})
	for _, s := range servers {
		t.Cleanup(s.Stop)
	}
	Eventually(t, "the servers of the cluster have routes to each other", func() bool {
		for _, s := range servers {
			if s.NumRoutes() < n-1 || options.JetStream && !s.JetStreamIsCurrent() {
				return false
			}
		}
		if !options.JetStream {
			return true
		}
		for _, s := range servers {
			if s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == n {
				return true
			}
		}
		return false
	})
	return servers
}

// startCluster starts n servers that have routes to each other. JetStream wants to have all routes from the start, so
// the ports are chosen before the servers listen; it returns nil if one of them is in use.
func startCluster(t testing.TB, n int, options *server.Options) []*Server {
	t.Helper()
	var routes []*url.URL
	var ports []int
	for range n {
		port := freeport.Port(t)
		ports = append(ports, port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	var servers []*Server
	for i, port := range ports {
		o := complete(t, options)
		o.ServerName = fmt.Sprintf("n%d", i)
		o.Port, o.DontListen = -1, false
		if o.JetStream && options.StoreDir != "" {
			o.StoreDir = fmt.Sprintf("%s/%d", options.StoreDir, i)
		}
		o.Cluster.Name, o.Cluster.Host, o.Cluster.Port = "test", "127.0.0.1", port
		o.Routes = routes
		srv, ok := listen(t, o)
		servers = append(servers, &Server{Server: srv, t: t, options: o})
		if !ok {
			for _, s := range servers {
				s.Stop()
			}
			return nil
		}
	}
	return servers
}

// Eventually waits until condition returns true and fails the test if it does not within a minute. what completes
// the sentence "still waiting: …".
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; {
		began := time.Now()
		if condition() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still waiting: %s", what)
		}
		<-time.After(min(max(4*time.Since(began), 2*time.Millisecond), 500*time.Millisecond)) // most of the time is for others
	}
}
