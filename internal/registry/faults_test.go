package registry

import (
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

var (
	faultSeed = flag.Uint64("faults.seed", 0, "seed of TestRandomFaults; 0 draws one")
	faultTime = flag.Duration("faults.for", 3*time.Minute, "fake time that TestRandomFaults takes")
	faultLog  = flag.Bool("faults.log", false, "log what the registries of TestRandomFaults do")
)

// world is the actual state, which the catalog must reach.
type world struct {
	*bed
	r     *rand.Rand
	exts  []*worldExt
	regs  []*Registry
	stops []func() // of regs
	names []string

	bridges [2]*fakeBridge // of half of the extensions
	runs    int            // of bridges
}

type worldExt struct {
	*fakeExt
	want heartbeat.State
	mute bool   // sends heartbeats, but does not answer requests
	stop func() // stops the heartbeats
}

// TestRandomFaults causes random faults in a small mesh for some minutes of fake time, and checks repeatedly that the
// catalog reaches the actual state.
func TestRandomFaults(t *testing.T) {
	seed := *faultSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d (-faults.seed)", seed)
	inBubble(t, func(t *testing.T, b *bed) {
		w := &world{bed: b, r: rand.New(rand.NewPCG(seed, 2))}
		w.startRegistry()
		w.startRegistry()
		for n := range w.bridges {
			w.startBridge(n)
		}
		for n := range 8 {
			e := b.ext(fmt.Sprint("e", n%6), "1.0.0", fmt.Sprint("n", n), "get", fmt.Sprint("tool", n%6))
			if n%2 == 1 {
				e.on(w.bridges[n/4])
			} else {
				e.announceOnRequest()
			}
			x := &worldExt{fakeExt: e, stop: func() {}}
			w.exts = append(w.exts, x)
			w.up(x)
		}
		w.check("at the start")
		start := time.Now()
		for time.Since(start) < *faultTime {
			var did []string
			for range 1 + w.r.IntN(3) {
				did = append(did, w.fault())
				if *faultLog {
					w.Logf("== %v %v", time.Now(), did[len(did)-1])
				}
				time.Sleep(time.Duration(w.r.IntN(3000)) * time.Millisecond)
			}
			w.check(fmt.Sprint(time.Since(start).Round(time.Millisecond), " ", did))
		}
	})
}

func (w *world) startRegistry() {
	name := fmt.Sprint("r", len(w.names))
	w.names = append(w.names, name)
	r, stop := w.registry(Config{Name: name, Logger: w.logger()})
	w.regs, w.stops = append(w.regs, r), append(w.stops, stop)
}

// startBridge starts the next run of a bridge. It lists what the last one has listed.
func (w *world) startBridge(n int) {
	w.runs++
	var list []wire.InventoryInstance
	if old := w.bridges[n]; old != nil {
		old.kill()
		list = old.list()
	}
	f := w.bridge(fmt.Sprint("bridge", n), fmt.Sprint("r", w.runs), list...)
	for _, x := range w.exts {
		if x.owner != nil && x.owner == w.bridges[n] {
			x.on(f)
		}
	}
	w.bridges[n] = f
	f.beat()
}

func (w *world) up(x *worldExt) {
	x.stop()
	x.silence()
	x.serve()
	x.fakeExt.up()
	if x.stop = func() {}; x.owner == nil {
		x.stop = x.sendHeartbeats()
	}
	x.want, x.mute = heartbeat.Ready, false
}

// fault causes one fault and returns its description.
func (w *world) fault() string {
	x := w.exts[w.r.IntN(len(w.exts))]
	name := x.a.ID + "/" + x.a.Instance
	switch w.r.IntN(14) {
	case 0, 1, 2:
		w.up(x)
		return name + " up"
	case 3, 4:
		switch {
		case x.want != heartbeat.Ready:
		case x.owner != nil:
			x.heartbeat(heartbeat.Failed)
			x.want = heartbeat.Failed
		default:
			x.stop()
			x.want = heartbeat.Lost
		}
		return name + " stops sending heartbeats, or fails"
	case 5:
		if x.want == heartbeat.Ready && x.owner != nil {
			x.heartbeat(heartbeat.Shutdown)
			x.want = heartbeat.Shutdown
		} else if x.want == heartbeat.Ready {
			x.stop()
			x.publish(prefix.Shutdown(x.a.ID), wire.ShutdownNotice{ID: x.a.ID, Instance: x.a.Instance, Reason: "bye"})
			x.want = heartbeat.Shutdown
		}
		return name + " sends a shutdown notice"
	case 6:
		if x.want == heartbeat.Ready {
			x.silence()
			x.want, x.mute = heartbeat.Lost, true
		}
		return name + " loses its service"
	case 7:
		for _, o := range w.exts {
			w.publish(prefix.Suspect(o.a.ID), `{"reason":"timeout"}`)
			w.publish(prefix.Announce(o.a.ID), `{"id":"`+o.a.ID+`"}`)
		}
		return "a liar complains of everybody"
	case 8:
		n := w.r.IntN(len(w.regs))
		w.stops[n]()
		w.regs, w.stops = slices.Delete(w.regs, n, n+1), slices.Delete(w.stops, n, n+1)
		w.startRegistry()
		return "a registry is replaced"
	case 9:
		w.stop()
		time.Sleep(time.Duration(w.r.IntN(10_000)) * time.Millisecond) // fake time
		w.start(true)
		return "the server restarts"
	case 10:
		n := w.r.IntN(len(w.bridges))
		if w.r.IntN(2) == 0 {
			w.startBridge(n)
			return "a bridge restarts"
		}
		w.bridges[n].loseNext()
		return "the next message of a bridge is lost"
	case 11:
		if s, err := w.bucket().js.Stream(w.timeout(), "KV_ext_catalog"); err == nil {
			_ = s.Purge(w.timeout())
		}
		return "the bucket is purged"
	case 12:
		_, _ = w.bucket().js.Publish(w.timeout(), w.bucket().subject(wire.KeyLease), []byte("mine")) // there may be no bucket
		return "the lease is overwritten"
	default:
		_ = w.bucket().js.DeleteStream(w.timeout(), "KV_ext_catalog")
		return "the bucket is deleted"
	}
}

// check waits until the catalog matches the actual state.
func (w *world) check(after string) {
	w.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	var wrong string
	for time.Now().Before(deadline) {
		if wrong = w.wrong(); wrong == "" {
			return
		}
		for _, x := range w.exts {
			if x.mute { // callers continue to call
				x.publish(prefix.Suspect(x.a.ID), `{"reason":"no_responders"}`)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, r := range w.regs {
		s := w.status(r)
		w.Logf("%+v", s)
	}
	w.Fatalf("%s: %s", after, wrong)
}

func (w *world) wrong() string {
	for _, x := range w.exts {
		spec, _ := w.spec(x.a.ID)
		state := w.state(x.a.ID)
		n := slices.IndexFunc(state.Instances, func(i wire.InstanceState) bool { return i.Instance == x.a.Instance })
		switch {
		case n < 0 && x.want == heartbeat.Ready:
			return fmt.Sprintf("%s/%s is missing in %+v", x.a.ID, x.a.Instance, state)
		case n >= 0 && state.Instances[n].State != x.want && (x.want == heartbeat.Ready || state.Instances[n].State == heartbeat.Ready):
			return fmt.Sprintf("%s/%s is %s, should be %s", x.a.ID, x.a.Instance, state.Instances[n].State, x.want)
		case x.want == heartbeat.Ready && len(spec.Tools) != 2:
			return fmt.Sprintf("the spec of %s is %+v", x.a.ID, spec)
		case x.want == heartbeat.Ready && (!state.Available || state.Breaker != nil):
			return fmt.Sprintf("%s is %+v", x.a.ID, state)
		}
	}
	return ""
}

func (w *world) logger() *slog.Logger {
	if *faultLog {
		return nil
	}
	return quiet
}
