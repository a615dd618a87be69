package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// victim is the process that suffers a fault.
type victim struct {
	label   string
	process *process                 // nil: a child of a bridge
	pid     int                      // of the process or the child
	restart func()                   // nil: its bridge restarts it
	server  int                      // the number of the NATS server it is, or -1
	calls   []string                 // extensions of which the calls that run are counted
	right   func(*mesh.Catalog) bool // what must become true in the catalogs
}

// pick finds the victim.
func (m *faultyMesh) pick(ctx context.Context) victim {
	v := victim{label: m.fault.victim, server: -1, calls: []string{echoID, nativeID}, right: m.shown}
	at := func(id, bridge string, condition func(wire.InstanceState) bool, want int) func(*mesh.Catalog) bool {
		return func(c *mesh.Catalog) bool {
			return count(c, id, func(i wire.InstanceState) bool { return i.Bridge == bridge && condition(i) }) == want
		}
	}
	switch m.fault.victim {
	case "stream leader":
		v.label, _ = m.leaders(ctx)
	case "meta leader":
		_, v.label = m.leaders(ctx)
	case "leader", "fence":
		v.label, _ = m.registries(ctx)
	case "standby":
		_, v.label = m.registries(ctx)
	case "bridge":
		v.label, v.calls, v.right = "bridge-one", v.calls[:1], at(echoID, "one", ready, 0)
	case "service":
		v.label, v.calls, v.right = "native", v.calls[1:], at(nativeID, "", ready, 0)
	case "child":
		v.label, v.pid, v.calls, v.right = "the child of bridge-one", m.child(ctx, "one", echoID), v.calls[:1], at(echoID, "one", healthy, 0)
		if m.hold == 0 {
			v.right = at(echoID, "one", func(i wire.InstanceState) bool { return ready(i) && i.Restarts > 0 }, 1)
		}
		return v
	}
	v.process, v.restart = m.programs[v.label], func() { m.launch(v.label) }
	if v.server = slices.IndexFunc(m.servers, func(s *server) bool { return s.name == v.label }); v.server >= 0 {
		v.process, v.restart = m.servers[v.server].process, func() { m.startServer(m.servers[v.server]) }
	}
	v.pid = v.process.pid()
	return v
}

// measure measures the fault and makes the cells of its row.
func (m *faultyMesh) measure(ctx context.Context, set setup) []string {
	m.build(ctx, set)
	v := m.pick(ctx)
	if v.server >= 0 { // what measures stays away from it
		m.useServer(v.server + 1)
		m.remark("at that server: a third of the followers and a caller of three")
	}
	m.join(ctx, v.server+1)
	calls := m.startCalls(ctx)
	defer calls.stop()
	pause(ctx, time.Second)
	leads := m.hold > 0 && (m.fault.victim == "leader" || m.fault.victim == "fence")
	if leads {
		m.keepChanging(ctx, 300*time.Millisecond) // it is stopped while it has something to write
	}
	inflight := calls.running(v.calls)
	check(signalProcess(v.pid, map[bool]os.Signal{true: sigStop, false: os.Kill}[m.hold > 0]))
	since := time.Now()
	m.change()
	jetStream := m.probeJetStream(ctx, since)
	if m.fault.victim == "fence" {
		m.takeLease(ctx)
	}
	right := await(ctx, m.followers, since, cmp.Or(m.hold, killLimit), v.right)
	undone := m.undo(ctx, v, since, leads)
	if right.missing > 0 && len(v.calls) == 2 {
		m.remark("after it went on, the change showed after %s", await(ctx, m.followers, since, killLimit, v.right))
	}
	back := await(ctx, m.followers, undone, settleLimit, m.complete)
	back.last()
	pause(ctx, time.Second)
	r := calls.stop()
	m.remark("slowest answered call %d ms", r.Quantile(1).Milliseconds())
	differ := m.differences(ctx, m.followers)
	if len(differ) > 0 {
		m.remark("differ: %s", strings.Join(slices.Compact(slices.Sorted(slices.Values(differ))), " "))
	}
	return []string{m.name(), v.label, right.String(), jetStream(), back.String(), fmt.Sprintf("%d (%d)", len(r.Took)+r.Failed(), inflight),
		lost(r), fmt.Sprint(len(differ)), strings.Join(m.remarks, "; ")}
}

// undo lets the victim go on, or starts it again, and returns when it did.
func (m *faultyMesh) undo(ctx context.Context, v victim, since time.Time, leads bool) time.Time {
	switch {
	case m.hold == 0 && v.restart != nil:
		<-v.process.done
		v.restart()
	case m.hold > 0:
		pause(ctx, m.hold-time.Since(since))
		check(signalProcess(v.pid, sigCont))
		if leads {
			m.keepChanging(ctx, 3*time.Second) // for it to write, which must be refused
		}
	}
	return time.Now()
}

// calls are calls at an even rate, in turn of the extension and of the service, from three callers at a server each.
type calls struct {
	clients  []*mesh.Client
	made     atomic.Int64
	inflight map[string]*atomic.Int64 // by extension
	stop     func() load.Result       // waits for the calls that run; may be called again
}

const (
	callRate    = 200 // a second
	callTimeout = 10 * time.Second
)

func (m *faultyMesh) startCalls(ctx context.Context) *calls {
	c := &calls{inflight: map[string]*atomic.Int64{echoID: {}, nativeID: {}}}
	for i := range m.servers {
		f := m.follow(m.urls(i), fmt.Sprint("caller-", i), quiet, nats.ReconnectBufSize(-1))
		await(ctx, []*follower{f}, time.Now(), settleLimit, m.complete).last()
		o := mesh.ClientOptions{Catalog: f.catalog, Timeout: callTimeout}
		if m.blind {
			o.Catalog = nil
		}
		c.clients = append(c.clients, mesh.NewClient(f.nc, o))
	}
	ctx, cancel := context.WithCancel(ctx)
	result := make(chan load.Result)
	go func() { // ends with stop
		// More callers than calls can run at once: no call waits for another.
		result <- load.Run(ctx, load.Options{Callers: callRate * 12, Rate: callRate, Kind: error.Error}, c.call)
	}()
	c.stop = sync.OnceValue(func() load.Result { cancel(); return <-result })
	return c
}

// call makes one call. The error names the extension, the kind of the error and whether the call may have run.
func (c *calls) call(ctx context.Context) error {
	n := int(c.made.Add(1))
	id := []string{echoID, nativeID}[n%2]
	c.inflight[id].Add(1)
	defer c.inflight[id].Add(-1)
	args := fmt.Sprintf(`{"n":%d}`, n)
	got, err := c.clients[n/2%len(c.clients)].Call(context.WithoutCancel(ctx), id+"/echo", []byte(args))
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

func (c *calls) running(ids []string) (n int64) {
	for _, id := range ids {
		n += c.inflight[id].Load()
	}
	return n
}

// lost lists the calls that failed.
func lost(r load.Result) string {
	text, sep := fmt.Sprint(r.Failed()), ": "
	for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
		text += fmt.Sprintf("%s%d %s", sep, r.Errors[kind], kind)
		sep = ", "
	}
	return text
}

// probeJetStream measures without the mesh when the catalog's stream takes a write and when the meta leader answers.
func (m *faultyMesh) probeJetStream(ctx context.Context, since time.Time) (result func() string) {
	took := []string{"never", "never"}
	var wg sync.WaitGroup
	for i, subject := range []string{"$KV." + prefix.Bucket() + ".bench", "$JS.API.STREAM.NAMES"} {
		wg.Go(func() { // ends within killLimit
			for ; time.Since(since) < killLimit && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
				if answer, err := m.nc.Request(subject, nil, 300*time.Millisecond); err == nil && !strings.Contains(string(answer.Data), `"error"`) {
					took[i] = fmt.Sprint(time.Since(since).Milliseconds())
					return
				}
			}
		})
	}
	return func() string { wg.Wait(); return strings.Join(took, " / ") }
}
