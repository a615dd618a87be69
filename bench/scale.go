package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// scale measures the rows of docs/scale.md.
type scale struct {
	stage
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
	meshes := []int{100, 1000, 10_000, 100_000}
	if set.quick {
		set.extensions, meshes = min(set.extensions, 500), meshes[:2]
	}
	heading("one nats-server, one registry, everything else in one process")
	fmt.Printf("**The large catalog: %d extensions of %d tools**\n\n", set.extensions, largeTools)
	head("what", "figure")
	largeCatalog(ctx, set)
	fmt.Print("\n**What one event costs the registry, in processor time; instances of an extension each, of one tool**\n\n")
	head("instances", "a heartbeat without news", "a change of state, from the heartbeat to the bucket", "without any event",
		"the registry's memory", "all in the catalog after")
	for _, n := range meshes {
		oneEvent(ctx, set, n)
	}
}

// build starts a registry on an empty bucket and waits until the catalog has all of a fleet.
func (s *scale) build(ctx context.Context, set setup, extensions, tools int) (took time.Duration) {
	s.set(ctx, set, 1)
	s.fleet = newFleet(s.connect(s.urls(0), "fleet"), extensions, tools)
	s.stopBeat = s.fleet.keepBeating(ctx)
	s.onClose(s.stopBeat)
	start := time.Now()
	s.start("registry", "registry", nil, "--log-level", "warn")
	s.awaitStatus(ctx, func(st registry.Status) bool {
		return st.Leading && st.Tools == extensions*tools && st.Extensions["ready"] == extensions && st.Pending == 0 && st.Handshakes == 0
	})
	return time.Since(start)
}

func (s *scale) awaitStatus(ctx context.Context, condition func(registry.Status) bool) {
	until(ctx, 5*time.Minute, "the registry has done its work", func() {
		if st := s.registryStatus(ctx); !condition(st) {
			fail("its status is %+v", st)
		}
	})
}

func largeCatalog(ctx context.Context, set setup) {
	s := &scale{}
	defer s.close()
	took := s.build(ctx, set, set.extensions, largeTools)
	_, peak := memory(s.pid("registry"))
	row("a registry is started on an empty bucket: all is in the catalog after",
		fmt.Sprintf("**%s**; the registry used %s of processor time, %.0f MB at most", ms(took), ms(cpuTime(s.pid("registry"))), peak))
	for _, rows := range []func(context.Context){s.rest, s.subscribe, s.startFollower, s.follow, s.extctl, s.change} {
		rows(ctx)
	}
}

// rest measures heartbeats without changes.
func (s *scale) rest(ctx context.Context) {
	pause(ctx, 2*time.Second)
	before := s.registryStatus(ctx).Traffic
	used := use(func() { pause(ctx, s.period()) }, s.pid("registry"), s.pid("n1"))
	after := s.registryStatus(ctx).Traffic
	registry, _ := memory(s.pid("registry"))
	server, _ := memory(s.pid("n1"))
	row(fmt.Sprintf("at rest, %.0f heartbeats a second, %d writes", float64(after.Beats-before.Beats)/used.took.Seconds(), after.Writes-before.Writes),
		fmt.Sprintf("registry **%s, %.0f MB**; nats-server %s, %.0f MB", percent(used.share(0)), registry, percent(used.share(1)), server))
}

// subscribe measures the time from a heartbeat that changes a state to the last of many subscriptions to the catalog.
func (s *scale) subscribe(ctx context.Context) {
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
	ready, other := s.toggle(ctx, s.sized(200), func(heartbeat.State) time.Time { return receive(ctx, all) })
	row(fmt.Sprintf("a `ready` heartbeat, to the last of %d subscriptions", many), quantiles(ready))
	row("a heartbeat with another state, which waits 100 ms for others, to the last of them", quantiles(other))
}

// receive waits for the next change.
func receive[T any](ctx context.Context, changes chan T) (v T) {
	select {
	case v = <-changes:
	case <-time.After(30 * time.Second):
		fail("a change did not arrive within 30 s")
	case <-ctx.Done():
		check(ctx.Err())
	}
	return v
}

// states are what extensions change between.
var states = [2]heartbeat.State{heartbeat.Restarting, heartbeat.Ready}

// toggle changes the state of the last extension back and forth, and waits for each change.
func (s *scale) toggle(ctx context.Context, n int, arrived func(heartbeat.State) time.Time) (ready, other []time.Duration) {
	for range n {
		for _, state := range states {
			start := time.Now()
			s.fleet.beat(s.fleet.size-1, state)
			took := arrived(state).Sub(start)
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

func percent(share float64) string { return fmt.Sprintf("%.1f %% of a core", 100*share) }

func quantiles(took []time.Duration) string {
	slices.Sort(took)
	r := load.Result{Took: took}
	return fmt.Sprintf("**p50 %s, p99 %s**", ms(r.Quantile(0.5)), ms(r.Quantile(0.99)))
}

// startFollower measures the start of a follower, and what its catalog takes on the heap of this program.
func (s *scale) startFollower(ctx context.Context) {
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
	row("a follower is started: it has all after", fmt.Sprintf("**%s**", ms(time.Since(began))))
	row("a follower's memory", fmt.Sprintf("**%.1f kB an extension** on the heap", (heap()-before)/1000/float64(s.fleet.size)))
	runtime.KeepAlive(f)
}

// follow measures the time from a heartbeat that changes a state to the last of some followers; in the end all of them
// must have what the bucket has.
func (s *scale) follow(ctx context.Context) {
	var all []*follower
	for i := range fullFollowers {
		f := s.stage.follow(s.urls(0), fmt.Sprint("follower-", i))
		check(f.catalog.WaitSynced(ctx))
		all = append(all, f)
	}
	ready, _ := s.toggle(ctx, s.sized(200), func(state heartbeat.State) time.Time {
		since := time.Now()
		return since.Add(await(ctx, all, since, 30*time.Second, func(c *mesh.Catalog) bool {
			e, ok := c.Get(simID(s.fleet.size - 1))
			return ok && e.State.State == state
		}).last())
	})
	row(fmt.Sprintf("a `ready` heartbeat, to the last of %d full followers", fullFollowers), quantiles(ready))
	row("documents in which the followers and the bucket differ then", fmt.Sprintf("**%d**", len(s.differences(ctx, all))))
}

func (s *scale) extctl(ctx context.Context) {
	for _, args := range [][]string{{"call", "ext_" + simID(0) + "_tool_0", "field_0=x"}, {"tools"}, {"list"}} {
		r := load.Run(ctx, load.Options{Calls: 5, Kind: error.Error}, func(ctx context.Context) error {
			_, err := exec.CommandContext(ctx, s.path("extctl"), append(args, "--server", s.urls(0), "--timeout", "60s")...).Output()
			return err
		})
		for text := range r.Errors {
			fail("extctl %v: %s", args, text)
		}
		row("`extctl "+strings.Join(args, " ")+"`, median of 5", "**"+ms(r.Quantile(0.5))+"**")
	}
}

// change measures extensions that change their state once a second.
func (s *scale) change(ctx context.Context) {
	n := min(s.sized(1000), s.fleet.size)
	nc := s.connect(s.urls(0), "bytes")
	must(nc.Subscribe(prefix.CatalogEvents()+".>", func(*nats.Msg) {}))
	check(nc.Flush())
	before, bytes := s.registryStatus(ctx), nc.Stats().InBytes
	used := use(func() {
		round := 0
		load.Run(ctx, load.Options{Rate: 1, For: s.period()}, func(context.Context) error {
			for i := range n {
				s.fleet.beat(i, states[round%2])
			}
			round++
			return nil
		})
		s.awaitStatus(ctx, func(st registry.Status) bool { return st.Pending == 0 })
	}, s.pid("registry"))
	writes := s.registryStatus(ctx).Traffic.Writes - before.Traffic.Writes
	row(fmt.Sprintf("%d extensions change their state once a second", n), fmt.Sprintf("**%.0f kB a second to a follower**, %.0f keys a second; registry %s",
		float64(nc.Stats().InBytes-bytes)/used.took.Seconds()/1000, float64(writes)/used.took.Seconds(), percent(used.share(0))))
}

// The events of which the cost is measured. The processor time that the registry uses without any event is subtracted.
const (
	beatsCounted   = 50_000
	changesCounted = 10_000
)

// oneEvent measures one row of the second table: a mesh of n instances.
func oneEvent(ctx context.Context, set setup, n int) {
	step(fmt.Sprint(n, " instances"))
	s := &scale{}
	defer s.close()
	built := s.build(ctx, set, n, 1)
	s.stopBeat() // from here on the counted events are all there are
	idle := s.idle(ctx)
	beats := use(func() { s.sendBeats(ctx) }, s.pid("registry"))
	changes := use(func() { s.sendChanges(ctx) }, s.pid("registry"))
	idle = min(idle, s.idle(ctx))
	each := func(u usage, events int) string {
		return fmt.Sprintf("%.1f µs", micros(u.cpu[0]-time.Duration(idle*float64(u.took)))/float64(events))
	}
	now, _ := memory(s.pid("registry"))
	row(fmt.Sprint(n), each(beats, beatsCounted), each(changes, changesCounted), percent(idle), fmt.Sprintf("%.0f MB", now), ms(built))
}

// idle waits until the garbage collector has finished with what building the catalog left, and returns the share of a
// core that the registry uses then.
func (s *scale) idle(ctx context.Context) (share float64) {
	until(ctx, 5*time.Minute, "the registry is idle", func() {
		if share = use(func() { time.Sleep(5 * time.Second) }, s.pid("registry")).share(0); share > 0.2 {
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
			s.fleet.beat((round/2*together+i)%s.fleet.size, states[round%2])
		}
		for range together {
			receive(ctx, received)
		}
	}
}
