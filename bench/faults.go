package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

const (
	echoID   = "echo"   // an extension of both bridges
	nativeID = "native" // an extension that is its own service on NATS
	canaryID = "canary" // an extension of this program, whose changes show how long a change takes

	busy        = 10 * time.Millisecond // duration of a call
	manyFollow  = 50                    // catalogs
	settleLimit = 90 * time.Second      // for everything to be ready
	killLimit   = time.Minute           // for the catalog to be right after a kill
)

// fault is a row of docs/faults.md: its victim is stopped for a while, or killed if that is 0.
type fault struct {
	victim string
	hold   time.Duration
	short  bool // measured with -quick
	blind  bool // callers have no catalog: the calls go to the queue groups, as raw NATS requests do
}

func (f fault) name() string {
	name := f.victim + ", SIGKILL"
	if f.hold > 0 {
		name = fmt.Sprintf("%s, SIGSTOP for %s", f.victim, f.hold)
	}
	if f.blind {
		name += ", callers without a catalog"
	}
	return name
}

// allFaults are the rows. A server is stopped for longer than its clients need to detect it (two unanswered pings), a leading registry for longer than its lease (10 s), except in the row fence.
var allFaults = []fault{
	{victim: "stream leader"}, {victim: "meta leader"}, {victim: "leader"}, {victim: "standby", short: true}, {victim: "bridge", short: true},
	{victim: "child", short: true}, {victim: "service", short: true}, {victim: "stream leader", hold: 40 * time.Second},
	{victim: "meta leader", hold: 40 * time.Second}, {victim: "leader", hold: 20 * time.Second}, {victim: "standby", hold: 20 * time.Second},
	{victim: "bridge", hold: 25 * time.Second}, {victim: "bridge", hold: 25 * time.Second, blind: true},
	{victim: "child", hold: 20 * time.Second}, {victim: "service", hold: 20 * time.Second}, {victim: "fence", hold: 3 * time.Second},
}

func measureFaults(ctx context.Context, set setup) {
	heading(fmt.Sprintf("3 NATS servers of nats-server's default raft settings, %d followers, %d calls a second of %s each; times in ms, rounded",
		manyFollow, callRate, busy))
	t := newTable("fault", "who", "catalog right, ms", "JetStream alone, ms", "all shown again, ms", "calls", "lost", "differ", "remarks")
	failed := 0
	for _, f := range allFaults {
		if !set.only.MatchString(f.name()) || set.quick && !f.short {
			continue
		}
		step(f.name())
		m := &faultyMesh{fault: f}
		var cells []string
		err := attempt(f.name(), func() { defer m.close(); cells = m.measure(ctx, set) })
		if check(ctx.Err()); err != nil {
			failed++
			cells = []string{f.name(), "", "NOT RUN: " + err.Error()}
		}
		t.row(cells...)
	}
	if failed > 0 {
		fail("%s could not be measured", plural(failed, "row"))
	}
}

// faultyMesh is a mesh in a cluster in which one fault is measured. Every row has a new one: all processes are at their
// places then, and no row depends on another.
type faultyMesh struct {
	stage
	fault
	js        jetstream.JetStream
	followers []*follower // a third at each server
	canary    *serve.Instance
	changes   int // of the canary
	remarks   []string
}

// home is the number of the server that a program connects to first.
var home = map[string]int{"registry-a": 0, "registry-b": 1, "bridge-one": 1, "bridge-two": 2, "native": 2}

// quiet discards the errors that connections report while servers are away.
var quiet = nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})

func (m *faultyMesh) remark(format string, args ...any) {
	m.remarks = append(m.remarks, fmt.Sprintf(format, args...))
}

// build starts everything but the canary and the followers.
func (m *faultyMesh) build(ctx context.Context, set setup) {
	m.set(ctx, set, 3)
	m.manifest("extensions", echoID, "busy")
	until(ctx, settleLimit, "the cluster has a meta leader", func() { m.metaLeader() })
	for name := range home {
		m.launch(name)
	}
	m.useServer(0)
	until(ctx, settleLimit, "the catalog's stream has its replicas, and one of two registries leads", func() {
		m.streamLeader(ctx)
		m.registries(ctx)
		m.child(ctx, "one", echoID)
	})
}

// launch starts a program, for the first time or again.
func (m *faultyMesh) launch(name string) {
	env := []string{"NATS_URL=" + m.servers[home[name]].url()} // one is enough: it reports the others
	switch kind, which, _ := strings.Cut(name, "-"); kind {
	case "registry":
		m.start(name, kind, env, "--name", name)
	case "bridge":
		m.startBridge(which, "extensions", env...)
	default:
		m.startRole(name, env...)
	}
}

// useServer makes the requests of this program over a connection to a server.
func (m *faultyMesh) useServer(n int) {
	m.nc = m.connect(m.urls(n), "requests", quiet)
	m.js = must(jetstream.New(m.nc))
}

// join starts the canary at a server, and the followers, and waits until the mesh is complete.
func (m *faultyMesh) join(ctx context.Context, server int) {
	node := serve.NewPublisher(m.connect(m.urls(server), canaryID, quiet), serve.PublisherOptions{})
	m.canary = node.Join(wire.Announce{ID: canaryID, Version: "1.0.0", Features: []string{wire.FeatureInstance}})
	running, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(running) }) // these three end in close
	wg.Go(func() { m.canary.Run(running) })
	wg.Go(func() { m.canary.Serve(running, echoBox(busy), serve.Options{}) })
	m.onClose(func() { cancel(); wg.Wait() })
	for i := range manyFollow {
		m.followers = append(m.followers, m.follow(m.urls(i), fmt.Sprint("follower-", i), quiet))
	}
	until(ctx, settleLimit, "the mesh is complete", func() {
		m.streamLeader(ctx)
		m.registries(ctx)
		for i, f := range m.followers {
			if !m.complete(f.catalog) {
				fail("follower %d does not show everything as ready", i)
			}
		}
	})
}

// complete reports whether a catalog shows everything as ready, and the last change of the canary.
func (m *faultyMesh) complete(c *mesh.Catalog) bool {
	_, _, echo := c.Tool(toolOf(echoID))
	_, _, native := c.Tool(toolOf(nativeID))
	return echo && native && count(c, echoID, healthy) == 2 && count(c, nativeID, healthy) == 1 && m.shown(c)
}

// count counts the instances of an extension that meet a condition.
func count(c *mesh.Catalog, id string, condition func(wire.InstanceState) bool) (n int) {
	for _, i := range instances(c, id) {
		if condition(i) {
			n++
		}
	}
	return n
}

func instances(c *mesh.Catalog, id string) []wire.InstanceState {
	if e, ok := c.Get(id); ok && e.State != nil {
		return e.State.Instances
	}
	return nil
}

func ready(i wire.InstanceState) bool { return i.State == heartbeat.Ready }

// healthy reports whether calls go to an instance.
func healthy(i wire.InstanceState) bool {
	return ready(i) && (i.Breaker == nil || i.Breaker.State == heartbeat.BreakerClosed)
}

// change changes the canary.
func (m *faultyMesh) change() {
	m.changes++
	m.canary.Apply(instance.Event{Kind: instance.Note, Reason: fmt.Sprint("change ", m.changes)})
}

// keepChanging changes the canary for a while, so that the leading registry has something to write.
func (m *faultyMesh) keepChanging(ctx context.Context, d time.Duration) {
	for began := time.Now(); time.Since(began) < d; pause(ctx, 3*time.Millisecond) {
		m.change()
	}
}

// shown reports whether a catalog has the last change of the canary.
func (m *faultyMesh) shown(c *mesh.Catalog) bool {
	last := func(i wire.InstanceState) bool {
		return ready(i) && (m.changes == 0 || i.Reason == fmt.Sprint("change ", m.changes))
	}
	return count(c, canaryID, last) > 0
}

// metaLeader is the server that leads JetStream's meta group, if all servers agree.
func (m *faultyMesh) metaLeader() (leader string) {
	client := http.Client{Timeout: time.Second}
	for _, s := range m.servers {
		var state struct {
			Meta struct{ Leader string } `json:"meta_cluster"`
		}
		resp := must(client.Get(fmt.Sprintf("http://127.0.0.1:%d/jsz", s.http)))
		err := json.NewDecoder(resp.Body).Decode(&state)
		resp.Body.Close()
		check(err)
		if state.Meta.Leader == "" || leader != "" && leader != state.Meta.Leader {
			fail("the servers do not agree on a meta leader")
		}
		leader = state.Meta.Leader
	}
	return leader
}

// streamLeader is the server that leads the catalog's stream, if all replicas are current.
func (m *faultyMesh) streamLeader(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c := must(m.js.Stream(ctx, "KV_"+prefix.Bucket())).CachedInfo().Cluster
	behind := func(r *jetstream.PeerInfo) bool { return !r.Current || r.Offline }
	if c == nil || c.Leader == "" || len(c.Replicas) != len(m.servers)-1 || slices.ContainsFunc(c.Replicas, behind) {
		fail("not all replicas of the catalog's stream are current")
	}
	return c.Leader
}

// leaders are the servers that lead the catalog's stream and the meta group, after the first was moved away from the
// second: a row is about one of them.
func (m *faultyMesh) leaders(ctx context.Context) (stream, meta string) {
	until(ctx, settleLimit, "the stream's leader is not the meta leader", func() {
		if stream, meta = m.streamLeader(ctx), m.metaLeader(); stream == meta {
			must(m.nc.Request("$JS.API.STREAM.LEADER.STEPDOWN.KV_"+prefix.Bucket(), nil, 5*time.Second))
			fail("both are %s", meta)
		}
	})
	return stream, meta
}

// registries are the leading registry and the standby, if both answer.
func (m *faultyMesh) registries(ctx context.Context) (leader, standby string) {
	r := m.registryStatus(ctx).Replicas
	if len(r) != 2 || r[0].Leading == r[1].Leading {
		fail("the registries are %+v", r)
	}
	if r[1].Leading {
		return r[1].Name, r[0].Name
	}
	return r[0].Name, r[1].Name
}

// takeLease deletes the lease of a registry that is stopped, and waits until the other one leads.
func (m *faultyMesh) takeLease(ctx context.Context) {
	check(must(m.js.KeyValue(ctx, prefix.Bucket())).Delete(ctx, wire.KeyLease))
	until(ctx, 30*time.Second, "the other registry leads", func() {
		if !m.registryStatus(ctx).Leading {
			fail("it does not")
		}
	})
}
