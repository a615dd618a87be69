package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// scale measures the rows of docs/scale.md.
type scale struct {
	stage
	registry *process
	fleet    *fleet
	stopBeat func()
}

const (
	largeTools    = 10 // of each extension of the large catalog
	fullFollowers = 5
)

// A quick run has a tenth of each.
func (s *scale) sized(n int) int {
	if s.quick {
		return n / 10
	}
	return n
}

// period is the duration of what is measured for a while.
func (s *scale) period() time.Duration { return time.Duration(s.sized(30)) * time.Second }

func measureScale(ctx context.Context, set setup) {
	if set.quick {
		set.extensions, set.instances = min(set.extensions, 500), "100,1000"
	}
	heading("one nats-server, one registry, everything else in one process")
	fmt.Printf("**The large catalog: %s of %s**\n\n", plural(set.extensions, "extension"), plural(largeTools, "tool"))
	largeCatalog(ctx, set, newTable("what", "figure"))
	fmt.Print("\n**What one event costs the registry, in processor time; instances of an extension each, of one tool**\n\n")
	t := newTable("instances", "a heartbeat without news", "a change of state, from the heartbeat to the bucket", "without any event",
		"the registry's memory", "all in the catalog after")
	for _, n := range strings.Split(set.instances, ",") {
		oneEvent(ctx, set, must(strconv.Atoi(n)), t)
	}
}

// build starts a registry on an empty bucket and waits until the catalog has all of a fleet.
func (s *scale) build(ctx context.Context, set setup, extensions, tools int, beating bool) (took time.Duration) {
	s.set(ctx, set, 1)
	s.fleet = newFleet(s.connect(s.urls(0), "fleet"), extensions, tools)
	s.stopBeat = func() {}
	s.onClose(func() { s.stopBeat() })
	if beating {
		s.stopBeat = s.fleet.keepBeating(ctx, 0)
	}
	start := time.Now()
	s.registry = s.start("registry", "registry", nil, "--log-level", "warn")
	s.awaitStatus(ctx, func(st registryStatus) bool {
		return st.Leading && st.Tools == extensions*tools && st.Extensions["ready"] == extensions && st.Pending == 0 && st.Handshakes == 0
	})
	return time.Since(start)
}

func (s *scale) awaitStatus(ctx context.Context, condition func(registryStatus) bool) {
	until(ctx, 5*time.Minute, "the registry has done its work", func() {
		if st := s.registryStatus(ctx); !condition(st) {
			fail("its status is %+v", st)
		}
	})
}

func largeCatalog(ctx context.Context, set setup, t *table) {
	s := &scale{}
	defer s.close()
	took := s.build(ctx, set, set.extensions, largeTools, false)
	_, peak := memory(s.registry.pid())
	t.row("a registry is started on an empty bucket: all is in the catalog after",
		fmt.Sprintf("**%s**; the registry used %s of processor time, %.0f MB at most", ms(took), ms(cpuTime(s.registry.pid())), peak))
	s.stopBeat = s.fleet.keepBeating(ctx, 0)
	for _, rows := range []func(context.Context, *table){s.rest, s.subscribe, s.startFollower, s.follow, s.programs, s.change} {
		rows(ctx, t)
	}
}

// rest measures heartbeats without changes.
func (s *scale) rest(ctx context.Context, t *table) {
	pause(ctx, 2*time.Second)
	before := s.registryStatus(ctx).Traffic
	var server usage
	registry := use(s.registry, func() { server = use(s.servers[0].process, func() { pause(ctx, s.period()) }) })
	after := s.registryStatus(ctx).Traffic
	now, _ := memory(s.registry.pid())
	serverNow, _ := memory(s.servers[0].pid())
	t.row(fmt.Sprintf("at rest, %.0f heartbeats a second, %d writes", float64(after.Beats-before.Beats)/registry.took.Seconds(), after.Writes-before.Writes),
		fmt.Sprintf("registry **%s, %.0f MB**; nats-server %s, %.0f MB", registry, now, server, serverNow))
}

// subscribe measures the time from a heartbeat that changes a state to the last of many subscriptions to the catalog.
func (s *scale) subscribe(ctx context.Context, t *table) {
	var received atomic.Int64
	all := make(chan time.Time, 1)
	last := ".state." + simID(s.fleet.size-1)
	many := s.sized(1000)
	for i := range many {
		nc := must(nats.Connect(s.urls(0), nats.Name(fmt.Sprint("subscription-", i))))
		defer nc.Close()
		must(nc.Subscribe(prefix.CatalogEvents()+".>", func(m *nats.Msg) { // all documents, as followers do
			if strings.HasSuffix(m.Subject, last) && received.Add(1)%int64(many) == 0 {
				all <- time.Now()
			}
		}))
		check(nc.Flush())
	}
	ready, other := s.toggle(ctx, s.sized(200), func(time.Time) time.Time {
		select {
		case at := <-all:
			return at
		case <-time.After(30 * time.Second):
			fail("the change did not reach all subscriptions within 30 s")
			return time.Time{}
		}
	})
	t.row("a `ready` heartbeat, to the last of "+plural(many, "subscription"), quantiles(ready))
	t.row("a heartbeat with another state, which waits 100 ms for others, to the last of them", quantiles(other))
}

// toggle changes the state of the last extension back and forth, and waits for each change.
func (s *scale) toggle(ctx context.Context, n int, arrived func(since time.Time) time.Time) (ready, other []time.Duration) {
	for range n {
		for _, state := range []heartbeat.State{heartbeat.Restarting, heartbeat.Ready} {
			start := time.Now()
			s.fleet.beat(s.fleet.size-1, state)
			took := arrived(start).Sub(start)
			if state == heartbeat.Ready {
				ready = append(ready, took)
			} else {
				other = append(other, took)
			}
			pause(ctx, 10*time.Millisecond)
		}
	}
	return ready, other
}

func quantiles(took []time.Duration) string {
	slices.Sort(took)
	r := load.Result{Took: took}
	return fmt.Sprintf("**p50 %s, p99 %s**", ms(r.Quantile(0.5)), ms(r.Quantile(0.99)))
}

// startFollower measures the start of a follower, and what its catalog takes on the heap of this program.
func (s *scale) startFollower(ctx context.Context, t *table) {
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before, began := heap(), time.Now()
	f := s.stage.follow(s.urls(0), "follower")
	check(f.catalog.WaitSynced(ctx))
	t.row("a follower is started: it has all after", fmt.Sprintf("**%s**", ms(time.Since(began))))
	if n := len(f.catalog.All()); n != s.fleet.size {
		fail("a follower has %d extensions of %d", n, s.fleet.size)
	}
	t.row("a follower's memory", fmt.Sprintf("**%.1f kB an extension** on the heap", (heap()-before)/1000/float64(s.fleet.size)))
	runtime.KeepAlive(f)
}

// follow measures the time from a heartbeat that changes a state to the last of some followers; in the end all of them
// must have what the bucket has.
func (s *scale) follow(ctx context.Context, t *table) {
	var all []*follower
	for i := range fullFollowers {
		f := s.stage.follow(s.urls(0), fmt.Sprint("follower-", i))
		check(f.catalog.WaitSynced(ctx))
		all = append(all, f)
	}
	id, before := simID(s.fleet.size-1), heartbeat.Ready
	ready, _ := s.toggle(ctx, s.sized(200), func(since time.Time) time.Time {
		took := await(ctx, all, since, 30*time.Second, func(c *mesh.Catalog) bool { e, ok := c.Get(id); return ok && e.State.State != before }).last()
		e, _ := all[0].catalog.Get(id)
		before = e.State.State
		return since.Add(took)
	})
	t.row("a `ready` heartbeat, to the last of "+plural(fullFollowers, "full follower"), quantiles(ready))
	t.row("documents in which the followers and the bucket differ then", fmt.Sprintf("**%d**", len(s.differences(ctx, all))))
}

// programs measures extctl.
func (s *scale) programs(ctx context.Context, t *table) {
	for _, args := range [][]string{{"call", "ext_" + simID(0) + "_tool_0", "field_0=x"}, {"tools"}, {"list"}} {
		r := load.Run(ctx, load.Options{Calls: 5, Kind: error.Error}, func(ctx context.Context) error {
			_, err := exec.CommandContext(ctx, filepath.Join(s.bin, "extctl"), append(args, "--server", s.urls(0), "--timeout", "60s")...).Output()
			return err
		})
		for text := range r.Errors {
			fail("extctl %v: %s", args, text)
		}
		t.row("`extctl "+strings.Join(args, " ")+"`, median of 5", "**"+ms(r.Quantile(0.5))+"**")
	}
}

// change measures extensions that change their state once a second.
func (s *scale) change(ctx context.Context, t *table) {
	n := min(s.sized(1000), s.fleet.size)
	s.stopBeat()
	s.stopBeat = s.fleet.keepBeating(ctx, n)
	nc := s.connect(s.urls(0), "bytes")
	must(nc.Subscribe(prefix.CatalogEvents()+".>", func(*nats.Msg) {}))
	check(nc.Flush())
	before, bytes := s.registryStatus(ctx), nc.Stats().InBytes
	registry := use(s.registry, func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for round, start := 0, time.Now(); time.Since(start) < s.period(); round++ {
			for i := range n {
				s.fleet.beat(i, [...]heartbeat.State{heartbeat.Restarting, heartbeat.Ready}[round%2])
			}
			<-tick.C
			check(ctx.Err())
		}
		s.awaitStatus(ctx, func(st registryStatus) bool { return st.Pending == 0 })
	})
	writes := s.registryStatus(ctx).Traffic.Writes - before.Traffic.Writes
	t.row(plural(n, "extension")+" change their state once a second", fmt.Sprintf("**%.0f kB a second to a follower**, %.0f keys a second; registry %s",
		float64(nc.Stats().InBytes-bytes)/registry.took.Seconds()/1000, float64(writes)/registry.took.Seconds(), registry))
}

// The events of which the cost is measured. The processor time that the registry uses without any event is subtracted.
const (
	beatsCounted   = 50_000
	changesCounted = 10_000
)

// oneEvent measures one row of the second table: a mesh of n instances.
func oneEvent(ctx context.Context, set setup, n int, t *table) {
	step(plural(n, "instance"))
	s := &scale{}
	defer s.close()
	built := s.build(ctx, set, n, 1, true)
	s.stopBeat() // from here on the counted events are all there are
	idle := s.idle(ctx)
	beats := use(s.registry, func() { s.sendBeats(ctx) })
	changes := use(s.registry, func() { s.sendChanges(ctx) })
	idle = min(idle, s.idle(ctx))
	each := func(u usage, events int) string {
		return fmt.Sprintf("%.1f µs", micros(u.cpu-time.Duration(idle*float64(u.took)))/float64(events))
	}
	now, _ := memory(s.registry.pid())
	t.row(fmt.Sprint(n), each(beats, beatsCounted), each(changes, changesCounted), fmt.Sprintf("%.1f %% of a core", 100*idle), fmt.Sprintf("%.0f MB", now), ms(built))
}

// idle waits until the garbage collector has finished with what building the catalog left, and returns the share of a
// core that the registry uses then.
func (s *scale) idle(ctx context.Context) (share float64) {
	until(ctx, 5*time.Minute, "the registry is idle", func() {
		if share = use(s.registry, func() { time.Sleep(5 * time.Second) }).share(); share > 0.2 {
			fail("it uses %.0f %% of a core", 100*share)
		}
	})
	return share
}

// sendBeats sends heartbeats without news of all extensions in turn.
func (s *scale) sendBeats(ctx context.Context) {
	want := s.registryStatus(ctx).Traffic.Beats + beatsCounted
	for n := range beatsCounted {
		s.fleet.beat(n%s.fleet.size, "")
	}
	for s.registryStatus(ctx).Traffic.Beats < want { // rarely: a status costs processor time, too
		pause(ctx, 200*time.Millisecond)
	}
}

// sendChanges changes the state of some extensions and changes it back, then of the next. As many change together as
// there are in the smallest mesh, so that the registry's batches are alike in all.
func (s *scale) sendChanges(ctx context.Context) {
	together := min(100, s.fleet.size)
	received := make(chan *nats.Msg, changesCounted)
	must(s.nc.ChanSubscribe(prefix.CatalogEvents()+".state.>", received))
	check(s.nc.Flush())
	for round := range changesCounted / together {
		for i := range together {
			s.fleet.beat((round/2*together+i)%s.fleet.size, [...]heartbeat.State{heartbeat.Restarting, heartbeat.Ready}[round%2])
		}
		for range together {
			select {
			case <-received:
			case <-time.After(30 * time.Second):
				fail("a change was not written within 30 s")
			case <-ctx.Done():
				check(ctx.Err())
			}
		}
	}
}
