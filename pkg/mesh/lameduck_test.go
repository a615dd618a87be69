package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/extmesh/extmesh/internal/leaks"
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
		if !s.ReadyForConnections(10 * time.Second) {
			t.Fatal("server not ready")
		}
		servers = append(servers, s)
	}
	soonTrue(t, "the servers know each other", func() bool { return n == 1 || servers[0].NumRoutes() > 0 })
	return servers
}

func soonTrue(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting: %s", what)
		}
	}
}

func duckConn(t *testing.T, s *server.Server, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), append(options, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// serveOn serves h as the extension duck until the test ends.
func serveOn(t *testing.T, nc *nats.Conn, d *LameDuck, h rpc.Handler) *Slot {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	node := NewNode(nc, NodeOptions{LameDuck: d})
	slot := node.Join(Announce{ID: "duck", Version: "1.0.0"})
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(ctx) }) // these three end with ctx
	wg.Go(func() { slot.Run(ctx) })
	wg.Go(func() {
		if err := slot.Serve(ctx, h, ServeOptions{}); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	soonTrue(t, "it is ready", func() bool { s, _ := slot.State(); return s == heartbeat.Ready })
	if d != nil {
		soonTrue(t, "its Node runs", func() bool { return len(d.services()) > 0 })
	}
	return slot
}

func echoBox() *Toolbox {
	box := &Toolbox{Version: "1.0.0"}
	box.AddRaw("echo", "", nil, func(_ context.Context, r *rpc.Request) (json.RawMessage, error) { return r.Params, nil })
	return box
}

// TestLameDuckMoves tells the server of a service and of a client that it is to go, while calls are under way. No
// call is lost, and both are on the other server when theirs is gone.
//
// But for one: what the third caller's server had sent over the route when it was yet to hear that the service is
// gone from there. NATS drops that without a word, whenever a subscription ends in a cluster (docs/rough_edges.md).
func TestLameDuckMoves(t *testing.T) {
	servers := duckServers(t, 2)
	var d, e LameDuck
	nc := duckConn(t, servers[0], d.Option())
	serveOn(t, nc, &d, echoBox())
	moved := make(chan struct{})
	nc.SetReconnectHandler(func(*nats.Conn) { close(moved) })
	// A busy machine might turn the two around, and the second would be as the third then.
	near := duckConn(t, servers[0], nats.LameDuckModeHandler(func(*nats.Conn) {
		select {
		case <-moved:
		case <-t.Context().Done():
		}
	}), e.Option())
	var wg sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	for _, c := range []struct {
		*Client
		mayLose int
	}{
		{NewClient(near, ClientOptions{LameDuck: &e}), 0},
		{NewClient(nc, ClientOptions{LameDuck: &d}), 0},
		{NewClient(duckConn(t, servers[1]), ClientOptions{Timeout: 2 * time.Second}), 1},
	} {
		wg.Go(func() { // ends with end
			for n := 0; ctx.Err() == nil; n++ {
				var got json.RawMessage
				err := error(rpc.CodeUnavailable)
				// The client tries again for 210 ms. On a busy machine the service may take longer to come back.
				for began := time.Now(); errors.Is(err, rpc.CodeUnavailable) && time.Since(began) < 5*time.Second; {
					got, err = c.Call(context.WithoutCancel(ctx), "duck/echo", json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)))
				}
				if c.mayLose > 0 && errors.Is(err, rpc.CodeTimeout) {
					c.mayLose--
				} else if err != nil || string(got) != fmt.Sprintf(`{"n":%d}`, n) {
					t.Errorf("call %d: %s, %v", n, got, err)
					return
				}
			}
		})
	}
	servers[0].LameDuckShutdown() // returns when it is down
	end()
	wg.Wait()
	for _, c := range []*nats.Conn{nc, near} {
		if c.ConnectedServerName() != "n1" || c.Stats().Reconnects != 1 {
			t.Errorf("on %q after %d reconnects, want n1 and 1", c.ConnectedServerName(), c.Stats().Reconnects)
		}
	}
}

// TestLameDuckAgain tells the server that a connection has just moved to, before all of its services are back, that it
// is to go, too: the connection goes on to the third in time.
func TestLameDuckAgain(t *testing.T) {
	servers := duckServers(t, 3, func(o *server.Options) { o.LameDuckGracePeriod, o.LameDuckDuration = time.Minute, 61*time.Second })
	var d LameDuck
	nc := duckConn(t, servers[0], d.Option())
	serveOn(t, nc, &d, echoBox())
	soonTrue(t, "all servers are known", func() bool { return len(nc.DiscoveredServers()) >= 2 })
	var going sync.WaitGroup
	defer going.Wait()
	defer func() {
		for _, s := range servers {
			s.Shutdown()
		}
	}()
	leave := func(s *server.Server) { going.Go(s.LameDuckShutdown) } // ends with Shutdown
	d.hold()                                                         // an answer that is on its way
	leave(servers[0])
	s := d.services()[0]
	soonTrue(t, "it is off the mesh", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.paused
	})
	s.mu.Lock()
	back := sync.OnceFunc(s.mu.Unlock)
	defer back() // it cannot be on the mesh again before
	d.release()
	var second string
	soonTrue(t, "it has moved", func() bool {
		second = nc.ConnectedServerName()
		return second != "" && second != "n0"
	})
	for n, s := range servers {
		if second == fmt.Sprintf("n%d", n) {
			leave(s)
		}
	}
	soonTrue(t, "the word is there", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.next != ""
	})
	back()
	soonTrue(t, "it has moved again", func() bool {
		name := nc.ConnectedServerName()
		return name != "" && name != "n0" && name != second
	})
	soonTrue(t, "it answers", func() bool {
		_, err := NewClient(nc, ClientOptions{}).Call(t.Context(), "duck/echo", nil)
		return err == nil
	})
}

// TestLameDuckDrains moves a service one of whose messages is still being taken up: a subscription that drains is
// gone before the connection moves, or the new server would give calls to nobody.
func TestLameDuckDrains(t *testing.T) {
	servers := duckServers(t, 2)
	var d LameDuck
	nc := duckConn(t, servers[0])
	h := &stuck{taken: make(chan struct{}), goOn: make(chan struct{})}
	serveOn(t, nc, &d, h)
	client := NewClient(duckConn(t, servers[1]), ClientOptions{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { // ends with its answer
			if _, err := client.CallExt(t.Context(), "duck", "tools/first", nil); err != nil {
				t.Errorf("a call under way: %v", err)
			}
		})
	}
	<-h.taken
	s, before, subscriptions := d.services()[0], nc.Stats().InMsgs, nc.NumSubscriptions()
	soonTrue(t, "the other call is there", func() bool { return nc.Stats().InMsgs > before || before > 1 })
	wg.Go(func() { d.move(nc) })
	soonTrue(t, "it is off the mesh", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.svc.isStopped() })
	if err := nc.FlushTimeout(10 * time.Second); err != nil { // the drain's own look comes before this, and finds the message
		t.Fatal(err)
	}
	close(h.goOn)
	wg.Wait()
	soonTrue(t, "what drained is gone", func() bool { return nc.NumSubscriptions() == subscriptions })
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := client.CallExt(ctx, "duck", "tools/next", nil)
		cancel()
		if err != nil {
			t.Fatal("a call was given to nobody:", err)
		}
	}
	if nc.ConnectedServerName() != "n1" {
		t.Errorf("on %q", nc.ConnectedServerName())
	}
}

// stuck is an rpc.AsyncHandler that keeps the subscription's goroutine over its first call, as none should.
type stuck struct {
	once        sync.Once
	taken, goOn chan struct{}
}

func (h *stuck) Handle(context.Context, *rpc.Request) (json.RawMessage, error) {
	return nil, errors.New("not asked this way")
}

func (h *stuck) HandleAsync(r *rpc.Request, x *rpc.Exchange) {
	h.once.Do(func() { close(h.taken); <-h.goOn })
	x.Sink.Deliver(x, rpc.NewReply(json.RawMessage("{}"), nil))
}

// TestLameDuckCannotComeBack moves a service that cannot be put on the mesh again. It must not be shown as ready, and
// is tried again until it can be.
func TestLameDuckCannotComeBack(t *testing.T) {
	servers := duckServers(t, 2)
	var d LameDuck
	nc := duckConn(t, servers[0])
	slot := serveOn(t, nc, &d, echoBox())
	slot.Update(func(a *Announce) { a.Version = "none that package micro takes" })
	d.move(nc)
	soonTrue(t, "it has failed", func() bool { s, _ := slot.State(); return s == heartbeat.Failed })
	s := d.services()[0]
	if reason := s.listenAgain(t.Context(), 0); reason == "" {
		t.Error("it hears calls, it says, and is off the mesh")
	}
	slot.Update(func(a *Announce) { a.Version = "1.0.0" })
	soonTrue(t, "it is ready", func() bool { s, _ := slot.State(); return s == heartbeat.Ready })
	client := NewClient(duckConn(t, servers[1]), ClientOptions{})
	if _, err := client.Call(t.Context(), "duck/echo", nil); err != nil {
		t.Errorf("now that it is ready: %v", err)
	}
}

// TestLameDuckAlone has nowhere to go, and stays.
func TestLameDuckAlone(t *testing.T) {
	servers := duckServers(t, 1)
	var d LameDuck
	told := make(chan struct{})
	nc := duckConn(t, servers[0], nats.LameDuckModeHandler(func(*nats.Conn) { close(told) }), d.Option())
	serveOn(t, nc, &d, echoBox())
	client := NewClient(nc, ClientOptions{LameDuck: &d})
	var wg sync.WaitGroup
	wg.Go(servers[0].LameDuckShutdown) // ends with the server
	<-told                             // by the handler that was there before
	d.move(nc)
	if _, err := client.Call(t.Context(), "duck/echo", nil); err != nil {
		t.Errorf("after it: %v", err)
	}
	if n := nc.Stats().Reconnects; n != 0 || !nc.IsConnected() {
		t.Errorf("it left the only server there is: %d reconnects", n)
	}
	nc.Close()
	wg.Wait()
}

// slowDialer waits for as long as it may, once it is slow.
type slowDialer struct {
	slow  atomic.Bool
	until <-chan struct{}
}

func (d *slowDialer) Dial(network, address string) (net.Conn, error) {
	if d.slow.Load() {
		<-d.until
		return nil, errors.New("too late")
	}
	return net.Dial(network, address)
}

// TestLameDuckReachesNobody: whether another server is there is found out in time, whatever time the dialer takes.
func TestLameDuckReachesNobody(t *testing.T) {
	servers := duckServers(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	dialer := &slowDialer{until: ctx.Done()}
	nc := duckConn(t, servers[0], nats.SetCustomDialer(dialer))
	soonTrue(t, "it knows both", func() bool { return len(nc.Servers()) == 2 })
	dialer.slow.Store(true)
	new(LameDuck).move(nc)
	if ctx.Err() != nil || nc.Stats().Reconnects != 0 {
		t.Errorf("it waited for %v, and made %d reconnects", ctx.Err(), nc.Stats().Reconnects)
	}
}

// TestLameDuckLeavesAlone does nothing to a connection that drains or is closed already.
func TestLameDuckLeavesAlone(t *testing.T) {
	servers := duckServers(t, 2)
	var d LameDuck
	nc := duckConn(t, servers[0])
	sub, err := nc.SubscribeSync("x")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{nc.Publish("x", nil), nc.Flush(), nc.Drain()} { // with a message left that nobody takes
		if err != nil {
			t.Fatal(err)
		}
	}
	soonTrue(t, "it drains", nc.IsDraining)
	d.move(nc)
	if !nc.IsDraining() || nc.Stats().Reconnects != 0 {
		t.Errorf("a connection that drained was moved: it is %s after %d reconnects", nc.Status(), nc.Stats().Reconnects)
	}
	if _, err := sub.NextMsg(10 * time.Second); err != nil {
		t.Errorf("what was to be drained: %v", err)
	}
	nc.Close()
	d.move(nc)
}

// TestLameDuckClosed closes the connection in the midst of a move, which ends with it. On a machine that is busy one
// may seem to go on; that all do is another matter.
func TestLameDuckClosed(t *testing.T) {
	var took time.Duration
	for range 10 {
		servers := duckServers(t, 2)
		var d LameDuck
		nc := duckConn(t, servers[0])
		d.asked.Add(1) // a call in flight to wait for
		var wg sync.WaitGroup
		wg.Go(func() { d.move(nc) })
		soonTrue(t, "the move has begun", func() bool { return d.gate.Load() != nil })
		nc.Close()
		began := time.Now()
		wg.Wait()
		if took = time.Since(began); took <= moveWait/2 {
			return
		}
	}
	t.Errorf("each move went on on a closed connection, the last for %s", took)
}

// TestLameDuckHolds holds calls while the connection moves, each for as long as its context lasts, or
// the client's Timeout where that has no end.
func TestLameDuckHolds(t *testing.T) {
	servers := duckServers(t, 1)
	var d LameDuck
	nc := duckConn(t, servers[0])
	serveOn(t, nc, &d, echoBox())
	client := NewClient(nc, ClientOptions{LameDuck: &d})
	g := &gate{make(chan struct{})}
	d.gate.Store(g)

	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := client.Call(short, "duck/echo", nil)
	if e := rpc.AsError(err); e.Code != rpc.CodeTimeout || e.Details().Ran != rpc.RanNo {
		t.Errorf("with 10 ms: %v", err)
	}
	_, err = NewClient(nc, ClientOptions{LameDuck: &d, Timeout: 10 * time.Millisecond}).Call(t.Context(), "duck/echo", nil)
	if e := rpc.AsError(err); e.Code != rpc.CodeTimeout || e.Details().Ran != rpc.RanNo {
		t.Errorf("with the client's 10 ms: %v", err)
	}
	short, cancel = context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { // ends with cancel
		_, err := client.Call(short, "duck/echo", nil)
		if e := rpc.AsError(err); e.Code != rpc.CodeCancelled || e.Details().Ran != rpc.RanNo {
			t.Errorf("cancelled: %v", err)
		}
	})
	cancel()
	wg.Wait()
	wg.Go(func() { // ends with its answer
		if _, err := client.Call(t.Context(), "duck/echo", nil); err != nil {
			t.Errorf("held: %v", err)
		}
	})
	d.gate.Store(nil)
	close(g.open)
	wg.Wait()
	if n := d.asked.Load(); n != 0 {
		t.Errorf("%d calls are still counted", n)
	}
}

// TestMicroSubscriptions checks what LameDuck counts on.
func TestMicroSubscriptions(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	before := nc.NumSubscriptions()
	svc, err := NewNode(nc, NodeOptions{}).addMicro(Announce{ID: "duck", Version: "1.0.0", Instance: "i", SubjectPrefix: "ext"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := nc.NumSubscriptions() - before; n != microSubscriptions {
		t.Errorf("a micro service has %d subscriptions, not %d", n, microSubscriptions)
	}
	if err := svc.stop(); err != nil {
		t.Error(err)
	}
	soonTrue(t, "it has none", func() bool { return nc.NumSubscriptions() == before })
}

func BenchmarkLameDuckAsk(b *testing.B) {
	var d LameDuck
	ctx, deadline := b.Context(), time.Now().Add(time.Hour)
	b.ReportAllocs()
	for b.Loop() {
		if d.ask(ctx, deadline) == nil {
			d.answered()
		}
	}
}
