package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
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

// allFaults are the rows. A server is stopped for longer than its clients need to detect it (two unanswered pings), a
// leading registry for longer than its lease (10 s), except in the row fence.
var allFaults = []fault{
	{victim: "stream leader"}, {victim: "meta leader"}, {victim: "leader"}, {victim: "standby"}, {victim: "bridge"},
	{victim: "child"}, {victim: "service"}, {victim: "stream leader", hold: 40 * time.Second},
	{victim: "meta leader", hold: 40 * time.Second}, {victim: "leader", hold: 20 * time.Second}, {victim: "standby", hold: 20 * time.Second},
	{victim: "bridge", hold: 25 * time.Second}, {victim: "bridge", hold: 25 * time.Second, blind: true},
	{victim: "child", hold: 20 * time.Second}, {victim: "service", hold: 20 * time.Second}, {victim: "fence", hold: 3 * time.Second},
}

func measureFaults(ctx context.Context, set setup) {
	heading(fmt.Sprintf("3 NATS servers of nats-server's default raft settings, %d followers, %d calls a second of %s each; times in ms, rounded",
		manyFollow, callRate, busy))
	head("fault", "who", "catalog right, ms", "JetStream alone, ms", "all shown again, ms", "calls", "lost", "differ", "remarks")
	for _, f := range allFaults {
		slow := f.hold > 0 || strings.HasSuffix(f.victim, "leader") // elections take seconds, too
		if set.only.MatchString(f.name()) && !(set.quick && slow) {
			step(f.name())
			check(attempt(f.name(), func() { (&faultyMesh{fault: f}).measure(ctx, set) }))
		}
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

	callers       []*mesh.Client // at a server each
	calls, inCall atomic.Int64
}

// home is the number of the server that a program connects to first.
var home = map[string]int{"registry-a": 0, "registry-b": 1, "bridge-one": 1, "bridge-two": 2, nativeID: 2}

// build starts everything but the canary and the followers.
func (m *faultyMesh) build(ctx context.Context, set setup) {
	m.set(ctx, set, 3)
	m.manifest("extensions", echoID, "busy")
	for name := range home {
		m.launch(name)
	}
	m.useServer(0)
	until(ctx, settleLimit, "one of two registries leads, and an extension runs", func() {
		m.registries(ctx)
		m.child(ctx, "one", echoID)
	})
}

// launch starts a program, for the first time or again.
func (m *faultyMesh) launch(name string) {
	env := "NATS_URL=" + m.url(home[name]) // one is enough: it reports the others
	switch kind, which, _ := strings.Cut(name, "-"); kind {
	case "registry":
		m.start(name, kind, []string{env}, "--name", name)
	case "bridge":
		m.startBridge(which, "extensions", env)
	case nativeID:
		m.startRole(name, name, env)
	default:
		m.startServer(m.serverOf(name))
	}
}

// serverOf is the number of a server, or -1 if the name is that of another program.
func (m *faultyMesh) serverOf(name string) int {
	return slices.IndexFunc(m.servers, func(s server) bool { return s.name == name })
}

// useServer makes the requests of this program over a connection to a server.
func (m *faultyMesh) useServer(n int) {
	m.nc = m.connect(m.urls(n), "requests")
	m.js = must(jetstream.New(m.nc))
}

// join starts the canary at a server, and the followers, and waits until the mesh is complete.
func (m *faultyMesh) join(ctx context.Context, server int) {
	node := serve.NewPublisher(m.connect(m.urls(server), canaryID), serve.PublisherOptions{})
	m.canary = node.Join(wire.Announce{ID: canaryID, Version: "1.0.0", Features: []string{wire.FeatureInstance}})
	running, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(running) }) // these three end in close
	wg.Go(func() { m.canary.Run(running) })
	wg.Go(func() { m.canary.Serve(running, echoBox(busy), serve.Options{}) })
	m.onClose(func() { cancel(); wg.Wait() })
	for i := range manyFollow {
		m.followers = append(m.followers, m.follow(m.urls(i), fmt.Sprint("follower-", i)))
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
	e, ok := c.Get(id)
	if !ok || e.State == nil {
		return 0
	}
	for _, i := range e.State.Instances {
		if condition(i) {
			n++
		}
	}
	return n
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

// metaLeader is the server that leads JetStream's meta group.
func (m *faultyMesh) metaLeader() string {
	client := http.Client{Timeout: time.Second}
	resp := must(client.Get(fmt.Sprintf("http://127.0.0.1:%d/jsz", m.servers[0].http)))
	defer resp.Body.Close()
	var state struct {
		Meta struct{ Leader string } `json:"meta_cluster"`
	}
	check(json.NewDecoder(resp.Body).Decode(&state))
	if state.Meta.Leader == "" {
		fail("there is no meta leader")
	}
	return state.Meta.Leader
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
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond) // half of the requests reach the one that is stopped
		defer cancel()
		if !m.registryStatus(soon).Leading {
			fail("it does not")
		}
	})
}

// pick finds the program that suffers the fault, and what must become true in the catalogs.
func (m *faultyMesh) pick(ctx context.Context) (who string, pid int, right func(*mesh.Catalog) bool) {
	right = m.shown
	at := func(id, bridge string, condition func(wire.InstanceState) bool, want int) func(*mesh.Catalog) bool {
		return func(c *mesh.Catalog) bool {
			return count(c, id, func(i wire.InstanceState) bool { return i.Bridge == bridge && condition(i) }) == want
		}
	}
	switch m.victim {
	case "stream leader":
		who, _ = m.leaders(ctx)
	case "meta leader":
		_, who = m.leaders(ctx)
	case "leader", "fence":
		who, _ = m.registries(ctx)
	case "standby":
		_, who = m.registries(ctx)
	case "bridge":
		who, right = "bridge-one", at(echoID, "one", ready, 0)
	case "service":
		who, right = nativeID, at(nativeID, "", ready, 0)
	case "child":
		right = at(echoID, "one", healthy, 0)
		if m.hold == 0 {
			right = at(echoID, "one", func(i wire.InstanceState) bool { return ready(i) && i.Restarts > 0 }, 1)
		}
		return "the child of bridge-one", m.child(ctx, "one", echoID), right
	}
	return who, m.pid(who), right
}

// measure measures the fault and prints its row.
func (m *faultyMesh) measure(ctx context.Context, set setup) {
	defer m.close()
	m.build(ctx, set)
	who, pid, isRight := m.pick(ctx)
	other := m.serverOf(who) + 1 // what measures stays away from a server that is the victim
	m.useServer(other)
	m.join(ctx, other)
	stopCalls := m.startCalls(ctx)
	defer stopCalls()
	pause(ctx, time.Second)
	leads := m.victim == "leader" || m.victim == "fence"
	if leads {
		m.keepChanging(ctx, 300*time.Millisecond) // it is stopped while it has something to write
	}
	inCall := m.inCall.Load()
	check(signalProcess(pid, map[bool]os.Signal{true: sigStop, false: os.Kill}[m.hold > 0]))
	since := time.Now()
	m.change()
	jetStream := m.probeJetStream(ctx, since)
	if m.victim == "fence" {
		m.takeLease(ctx)
	}
	right := await(ctx, m.followers, since, cmp.Or(m.hold, killLimit), isRight)
	if program := m.programs[who]; m.hold > 0 {
		pause(ctx, m.hold-time.Since(since))
		check(signalProcess(pid, sigCont))
		if leads {
			m.keepChanging(ctx, 3*time.Second) // for it to write, which must be refused
		}
	} else if program != nil { // a bridge restarts its child
		<-program.done
		m.launch(who)
	}
	back := await(ctx, m.followers, time.Now(), settleLimit, m.complete)
	back.last()
	pause(ctx, time.Second)
	r := stopCalls()
	differ := m.differences(ctx, m.followers)
	step(fmt.Sprintf("documents that differ: %q", differ))
	row(m.name(), who, right.String(), jetStream(), back.String(), fmt.Sprintf("%d (%d)", len(r.Took)+r.Failed(), inCall),
		lost(r), fmt.Sprint(len(differ)), fmt.Sprintf("slowest answered call %d ms", r.Quantile(1).Milliseconds()))
}

const callRate = 200 // a second

// startCalls makes calls at an even rate until stop is called, which waits for those that run and may be called again.
func (m *faultyMesh) startCalls(ctx context.Context) (stop func() load.Result) {
	for i := range m.servers {
		o := mesh.ClientOptions{Timeout: 10 * time.Second}
		if !m.blind {
			o.Catalog = m.followers[i].catalog
		}
		m.callers = append(m.callers, mesh.NewClient(m.followers[i].nc, o))
	}
	ctx, cancel := context.WithCancel(ctx)
	result := make(chan load.Result)
	go func() { // ends with stop
		// More callers than calls can run at once: no call waits for another.
		result <- load.Run(ctx, load.Options{Callers: callRate * 12, Rate: callRate, Kind: error.Error}, m.call)
	}()
	return sync.OnceValue(func() load.Result { cancel(); return <-result })
}

// call makes one call, in turn of the extension and of the service. The error names the extension, the kind of the error and whether the call may have run.
func (m *faultyMesh) call(ctx context.Context) error {
	n := int(m.calls.Add(1))
	id := []string{echoID, nativeID}[n%2]
	m.inCall.Add(1)
	defer m.inCall.Add(-1)
	args := fmt.Sprintf(`{"n":%d}`, n)
	got, err := m.callers[n/2%len(m.callers)].Call(context.WithoutCancel(ctx), id+"/echo", []byte(args))
	if e, ok := errors.AsType[*rpc.Error](err); ok {
		err = fmt.Errorf("%s, ran: %s", e.Code.Kind(), cmp.Or(string(e.Details().Ran), "?"))
	} else if err == nil && string(got) != args {
		err = fmt.Errorf("wrong answer %.40s", got)
	}
	if err != nil {
		return fmt.Errorf("%s (%w)", id, err)
	}
	return nil
}

// lost lists the calls that failed.
func lost(r load.Result) string {
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
		kinds = append(kinds, fmt.Sprint(r.Errors[kind], " ", kind))
	}
	return strings.TrimSuffix(fmt.Sprintf("%d: %s", r.Failed(), strings.Join(kinds, ", ")), ": ")
}

// probeJetStream measures without the mesh when the catalog's stream takes a write and when the meta leader answers.
func (m *faultyMesh) probeJetStream(ctx context.Context, since time.Time) (result func() string) {
	took := [2]time.Duration{never, never}
	var wg sync.WaitGroup
	for i, subject := range []string{"$KV." + prefix.Bucket() + ".bench", "$JS.API.STREAM.NAMES"} {
		wg.Go(func() { // ends within killLimit
			for ; time.Since(since) < killLimit && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
				if answer, err := m.nc.Request(subject, nil, 300*time.Millisecond); err == nil && !strings.Contains(string(answer.Data), `"error"`) {
					took[i] = time.Since(since)
					return
				}
			}
		})
	}
	return func() string { wg.Wait(); return whole(took[0]) + " / " + whole(took[1]) }
}
