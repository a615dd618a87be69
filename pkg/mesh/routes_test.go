package mesh

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// replicas is an extension with these instances.
func replicas(revision uint64, all ...wire.InstanceState) Extension {
	return Extension{ID: "x", Spec: &wire.Spec{ID: "x", Features: []string{wire.FeatureInstance}}, State: &wire.StateDoc{Instances: all}, StateRevision: revision}
}

func replica(name string, s heartbeat.State, reason string) wire.InstanceState {
	return wire.InstanceState{Instance: name, State: s, Reason: reason}
}

func fresh() bool { return true }

func TestRoutesWithTrouble(t *testing.T) {
	now := time.Now()
	ready := replica("good", heartbeat.Ready, "")
	for _, tt := range []struct {
		what  string
		e     Extension
		fresh bool
		want  string
	}{
		{"all are well", replicas(1, ready, replica("bad", heartbeat.Ready, "")), true, ""},
		{"one does not answer", replicas(1, ready, replica("bad", heartbeat.Ready, wire.NotAnswering)), true, "good"},
		{"one is lost", replicas(1, replica("bad", heartbeat.Lost, "silent for 45s"), ready), true, "good"},
		{"the breaker of one is open", replicas(1, ready, wire.InstanceState{Instance: "bad", State: heartbeat.Ready, Breaker: &heartbeat.Breaker{State: heartbeat.BreakerOpen}}), true, "good"},
		{"one restarts", replicas(1, ready, replica("bad", heartbeat.Restarting, "")), true, ""},
		{"the catalog is old", replicas(1, ready, replica("bad", heartbeat.Lost, "")), false, ""},
		{"none is left", replicas(1, replica("bad", heartbeat.Lost, "")), true, ""},
		{"a manifest without a service", replicas(1, ready, replica("", heartbeat.Lost, "no heartbeat yet")), true, ""},
	} {
		var r routes
		if got := r.choose(tt.e, func() bool { return tt.fresh }, now); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
	none := replicas(1, ready, replica("bad", heartbeat.Lost, ""))
	none.Spec.Features = nil
	var r routes
	if got := r.choose(none, fresh, now); got != "" {
		t.Errorf("without subjects of their own: %q", got)
	}
}

// TestRoutesSettle: when the catalog shows that all are well again, calls are addressed for one more heartbeat interval.
func TestRoutesSettle(t *testing.T) {
	var r routes
	now := time.Now()
	a, b := replica("a", heartbeat.Ready, ""), replica("b", heartbeat.Ready, "")
	choose := func(e Extension, now time.Time) string {
		name := r.choose(e, fresh, now)
		r.done(name)
		return name
	}
	if got := choose(replicas(1, a, replica("b", heartbeat.Lost, "")), now); got != "a" {
		t.Fatalf("%q", got)
	}
	seen := map[string]bool{}
	for range 200 {
		seen[choose(replicas(2, a, b), now.Add(settleTime/2))] = true
	}
	if !seen["a"] || !seen["b"] || seen[""] {
		t.Errorf("before it has settled: %v", seen)
	}
	if got := choose(replicas(2, a, b), now.Add(settleTime+time.Millisecond)); got != "" {
		t.Errorf("after it has settled: %q", got)
	}
}

// TestRoutesLearn: without a word of the catalog, calls that get no sign of life make the Client address instances, and an
// instance that has not answered yet gets one call.
func TestRoutesLearn(t *testing.T) {
	var r routes
	now := time.Now()
	e := replicas(1, replica("hung", heartbeat.Ready, ""), replica("good", heartbeat.Ready, ""))
	if got := r.choose(e, fresh, now); got != "" {
		t.Fatalf("before: %q", got)
	}
	r.silent("", now) // a call that any instance may have got
	calls := map[string]int{}
	for range 1000 {
		name := r.choose(e, fresh, now)
		calls[name]++
		if name == "good" {
			r.received(name)
			r.done(name)
		}
	}
	if calls["hung"] > 1 || calls["good"] < 999 {
		t.Errorf("the hung instance got %d calls, the other one %d", calls["hung"], calls["good"])
	}
	r.silent("hung", now)
	r.done("hung")
	for range 100 {
		if got := r.choose(e, fresh, now.Add(time.Second)); got != "good" {
			t.Fatalf("after the hung one was silent: %q", got)
		}
	}
	r.absent("good", now.Add(time.Second))
	if got := r.choose(e, fresh, now.Add(1500*time.Millisecond)); got != "" {
		t.Errorf("without any: %q", got)
	}
	if got := r.choose(e, fresh, now.Add(3*time.Second)); got != "good" {
		t.Errorf("after a second: %q", got)
	}
	if got := r.choose(e, fresh, now.Add(settleTime+2*time.Second)); got != "" {
		t.Errorf("in the end: %q", got)
	}
}

// TestRoutesSlow: the other instance hangs, and the ready one is slow. It gets the calls, unless it is absent.
func TestRoutesSlow(t *testing.T) {
	var r routes
	now := time.Now()
	e := replicas(1, replica("hung", heartbeat.Lost, ""), replica("slow", heartbeat.Ready, ""))
	for range 3 {
		if got := r.choose(e, fresh, now); got != "slow" {
			t.Fatalf("%q", got)
		}
		r.silent("slow", now)
	}
	if got := r.choose(e, func() bool { return false }, now); got != "" {
		t.Errorf("with an old catalog: %q", got)
	}
	r.absent("slow", now)
	if got := r.choose(e, fresh, now); got != "" {
		t.Errorf("after it was absent: %q", got)
	}
}

// TestRoutesLoad: of two instances, the one with fewer calls in flight is chosen.
func TestRoutesLoad(t *testing.T) {
	var r routes
	now := time.Now()
	e := replicas(1, replica("a", heartbeat.Ready, ""), replica("b", heartbeat.Ready, ""))
	r.silent("", now)
	for range 2 { // both have answered
		r.received(r.choose(e, fresh, now))
	}
	for range 100 {
		r.choose(e, fresh, now)
	}
	if a, b := r.peers["a"].inflight, r.peers["b"].inflight; a-b > 1 || b-a > 1 {
		t.Errorf("%d calls in flight at a, %d at b", a, b)
	}
}

// twins are two instances of the extension x. The instance hung gets calls and never answers.
type twins struct {
	*catalogBed
	swallowed chan struct{} // calls that hung got
	lost      int           // those that a test has counted
	service   *nats.Conn    // of both
	queue     map[string]*nats.Subscription
}

func newTwins(t *testing.T, b *catalogBed) *twins {
	w := &twins{catalogBed: b, swallowed: make(chan struct{}, 1000), queue: map[string]*nats.Subscription{}}
	b.bucket()
	nc := b.connect()
	w.service = nc
	hung := func(*nats.Msg) { w.swallowed <- struct{}{} }
	good := func(m *nats.Msg) { m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)) }
	for name, handle := range map[string]nats.MsgHandler{"hung": hung, "good": good} {
		_, err := nc.Subscribe("ext.x.rpc."+name, handle)
		if err == nil {
			w.queue[name], err = nc.QueueSubscribe("ext.x.rpc", wire.QueueGroup, handle)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	nc.Flush()
	b.put("spec.x", wire.Spec{ID: "x", Version: "1.0.0", Subject: "ext.x.rpc", Features: []string{wire.FeatureInstance, wire.FeatureStream},
		Tools: []wire.Tool{{Name: "ext_x_do", Own: "do"}}})
	b.put("lease.registry", map[string]int{"n": 1})
	w.show(replica("hung", heartbeat.Ready, ""))
	return w
}

// disconnect takes an instance out of the queue group, as NATS does when it closes the connection of a hung one.
func (w *twins) disconnect(name string) {
	if err := w.queue[name].Unsubscribe(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.service.Flush(); err != nil {
		w.t.Fatal(err)
	}
}

// show sets what the catalog shows about the hung instance.
func (w *twins) show(hung wire.InstanceState) {
	w.put("state.x", wire.StateDoc{State: heartbeat.Ready, Available: true, Instances: []wire.InstanceState{hung, replica("good", heartbeat.Ready, "")}})
}

func (w *twins) load() *Catalog {
	c, err := LoadCatalog(w.t.Context(), w.nc, CatalogOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	c.data.seen = time.Now().Add(time.Hour) // no registry renews it
	return c
}

// TestHungInstanceIsAvoided: while the catalog shows that an instance does not answer, it gets no calls.
func TestHungInstanceIsAvoided(t *testing.T) {
	w := newTwins(t, newCatalogBed(t))
	for _, hung := range []wire.InstanceState{replica("hung", heartbeat.Ready, wire.NotAnswering), replica("hung", heartbeat.Lost, wire.NotAnswering)} {
		w.show(hung)
		client := NewClient(w.nc, ClientOptions{Catalog: w.load()})
		for range 200 {
			if _, err := client.Call(t.Context(), "ext_x_do", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(w.swallowed); n != 0 {
		t.Errorf("the hung instance got %d calls", n)
	}
}

// TestHungInstanceIsNoticed: the catalog shows nothing. After the first call without a sign of life, the client reports the
// extension, and the hung instance gets one more call at most within settleTime, which a slow machine may need for fewer
// than 100 calls.
func TestHungInstanceIsNoticed(t *testing.T) {
	t.Parallel()
	w := newTwins(t, newCatalogBed(t))
	reports, err := w.nc.SubscribeSync("ext.registry.suspect.x")
	if err != nil {
		t.Fatal(err)
	}
	client := NewClient(w.nc, ClientOptions{Catalog: w.load()})
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	call := func() { // returns when one of the instances has the call
		answered := make(chan error, 1)
		calls.Go(func() { // ends with ctx
			_, err := client.Call(ctx, "ext_x_do", nil)
			answered <- err
		})
		select {
		case err := <-answered:
			if err != nil {
				t.Error(err)
			}
		case <-w.swallowed:
			w.lost++
		}
	}
	var sent time.Time // the call that is lost: the client notes the silence later
	for w.lost == 0 {
		sent = time.Now()
		call()
	}
	if _, err := reports.NextMsg(time.Minute); err != nil {
		t.Fatal(err)
	}
	w.lost = 0
	for n := range 100 {
		call()
		if time.Since(sent) > settleTime {
			break
		}
		if w.lost > 1 {
			t.Fatalf("the hung instance got %d of %d calls", w.lost, n+1)
		}
	}
}

// TestHungInstanceWithoutPermission: a user who may not publish to instances calls the queue group, after one try.
func TestHungInstanceWithoutPermission(t *testing.T) {
	t.Parallel()
	b := &catalogBed{t: t, srv: natstest.Start(t, &server.Options{Port: -1, JetStream: true, NoAuthUser: "all",
		Users: []*server.User{{Username: "all", Password: "x"}, {Username: "agent", Password: "x",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"ext.*.rpc.*"}}}}}})}
	b.nc = b.connect()
	w := newTwins(t, b)
	w.show(replica("hung", heartbeat.Lost, wire.NotAnswering))
	w.disconnect("hung")
	agent := b.srv.Connect(nats.UserInfo("agent", "x"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	client := NewClient(agent, ClientOptions{Catalog: w.load()})
	for n := range 20 {
		if _, err := client.Call(t.Context(), "ext_x_do", nil); err != nil {
			t.Fatal(err)
		}
		if client.denied.Load() == 0 {
			t.Fatalf("after call %d, the client still addresses instances", n)
		}
	}
}

// TestAddressedInstanceIsGone: an instance that the catalog shows as ready is not subscribed. Any other one gets the call.
func TestAddressedInstanceIsGone(t *testing.T) {
	w := newTwins(t, newCatalogBed(t))
	w.put("state.x", wire.StateDoc{State: heartbeat.Ready, Available: true, Instances: []wire.InstanceState{
		replica("hung", heartbeat.Lost, ""), replica("gone", heartbeat.Ready, "")}})
	w.disconnect("hung")
	client := NewClient(w.nc, ClientOptions{Catalog: w.load()})
	for range 50 {
		if _, err := client.Call(t.Context(), "ext_x_do", nil); err != nil {
			t.Fatal(err)
		}
	}
}
