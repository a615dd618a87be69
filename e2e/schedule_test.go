package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestSchedules plays random schedules of faults: programs, NATS servers and children are killed or stopped, connections
// are cut, stalled or slow, manifests are edited, broken and removed, the catalog's bucket is purged or deleted, and
// extensions are restarted, drained and reloaded. One minute after the last fault at the latest, the catalog must show
// exactly what runs. Odd seeds have one NATS server, even ones three.
//
// EXTMESH_SEEDS is one seed, or a range such as 1-100. Without it, the test plays two seeds if EXTMESH_SLOW=nightly.
func TestSchedules(t *testing.T) {
	for _, seed := range scheduleSeeds(t) {
		t.Run(strconv.Itoa(int(seed)), func(t *testing.T) {
			t.Parallel()
			playSchedule(t, seed)
		})
	}
}

func scheduleSeeds(t *testing.T) (seeds []uint64) {
	text := os.Getenv("EXTMESH_SEEDS")
	if text == "" {
		nightlyOnly(t, "it takes minutes")
		text = "1-2"
	}
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	to, err := strconv.ParseUint(last, 10, 32)
	if err != nil || to < from {
		t.Fatalf("EXTMESH_SEEDS=%s: want a seed or a range of seeds", text)
	}
	for s := from; s <= to; s++ {
		seeds = append(seeds, s)
	}
	return seeds
}

// The shape of a schedule.
const (
	scheduledFaults  = 9
	scheduledSpan    = 12 * time.Second // from the first fault to the last
	longestFault     = 7 * time.Second
	rightAfterFaults = time.Minute
)

// scheduledEvent is the begin or the end of a fault.
type scheduledEvent struct {
	at time.Duration
	do func()
}

func playSchedule(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	servers, heartbeat := 3, 15*time.Second
	if seed%2 == 1 {
		servers = 1
	}
	if seed%4 < 2 {
		heartbeat = time.Second
	}
	m := newScheduledMesh(t, servers, heartbeat)
	eventually(t, 2*time.Minute, "the catalog is right before the first fault", func() bool { return m.wrong() == "" })

	s := &schedule{scheduledMesh: m, r: r, busy: map[string]bool{}, start: time.Now()}
	var events []scheduledEvent
	for range scheduledFaults {
		at := time.Duration(r.Int64N(int64(scheduledSpan)))
		until := at + 100*time.Millisecond + time.Duration(r.Int64N(int64(longestFault)))
		begin, end := s.fault()
		events = append(events, scheduledEvent{at, begin}, scheduledEvent{until, end})
	}
	slices.SortStableFunc(events, func(a, b scheduledEvent) int { return cmp.Compare(a.at, b.at) })
	for _, e := range events {
		sleep(t.Context(), time.Until(s.start.Add(e.at)))
		e.do()
	}
	for name, p := range m.programs {
		if p.ended() {
			t.Errorf("%s ended by itself: %v", name, p.p.err)
		}
	}
	last, difference := time.Now(), "not compared yet"
	for difference != "" && time.Since(last) < rightAfterFaults {
		if difference = m.wrong(); difference != "" {
			sleep(t.Context(), 200*time.Millisecond)
		}
	}
	if difference != "" {
		t.Errorf("%s after the last fault of seed %d (%d servers): %s\nthe schedule was:\n%s", time.Since(last).Round(time.Second), seed, servers,
			difference, strings.Join(s.log, "\n"))
		return
	}
	took := time.Since(last)
	sleep(t.Context(), 3*time.Second) // it must stay right: no late message may change it
	if difference := m.wrong(); difference != "" {
		eventually(t, rightAfterFaults, "right again after: "+difference, func() bool { return m.wrong() == "" })
		t.Errorf("the catalog of seed %d was right %s after the last fault, and later wrong again: %s\n%s", seed, ms(took), difference, strings.Join(s.log, "\n"))
		return
	}
	t.Logf("right %s after the last fault of\n%s", ms(took), strings.Join(s.log, "\n"))
}

// schedule makes faults.
type schedule struct {
	*scheduledMesh
	r     *rand.Rand
	busy  map[string]bool // what a fault has not released yet; others leave it alone
	start time.Time
	log   []string
}

func (s *schedule) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%5.1fs ", time.Since(s.start).Seconds())+fmt.Sprintf(format, args...))
}

// pick returns a random element.
func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// fault returns a random fault. All random choices are made here, so that a seed always has the same schedule.
func (s *schedule) fault() (begin, end func()) {
	names := slices.Sorted(maps.Keys(s.programs))
	links := slices.Sorted(maps.Keys(s.links))
	bridge := pick(s.r, []string{"bridge-a", "bridge-b"})
	id := pick(s.r, []string{"shared", "twice", "only-" + bridge})
	switch s.r.IntN(9) {
	case 0, 1:
		return s.process(pick(s.r, names), pick(s.r, []string{"kill", "stop", "terminate"}))
	case 2:
		return s.server(s.r.IntN(len(s.servers)), pick(s.r, []string{"kill", "stop"}))
	case 3, 4:
		return s.connection(pick(s.r, links), pick(s.r, []string{"cut", "stalled", "slow"}))
	case 5, 6:
		return s.manifest(bridge, id, pick(s.r, []string{"edited", "half-written", "removed", "removed for ever"}))
	case 7:
		return s.catalog(pick(s.r, []string{"purged", "deleted"}))
	default:
		return s.verb(bridge, id, pick(s.r, []string{"restart", "drain", "reload", "kill child"}))
	}
}

// exclusive makes begin and end do nothing if another fault holds what at the time of begin.
func (s *schedule) exclusive(what, text string, begin, end func()) (func(), func()) {
	held := false
	return func() {
			if held = !s.busy[what]; held {
				s.busy[what] = true
				s.note("%s: %s", what, text)
				begin()
			}
		}, func() {
			if held {
				end()
				s.note("%s: end of %s", what, text)
				delete(s.busy, what)
			}
		}
}

func (s *schedule) process(name, how string) (begin, end func()) {
	return s.signal(name, s.programs[name], how)
}

func (s *schedule) server(n int, how string) (begin, end func()) {
	return s.signal(fmt.Sprintf("NATS server %d", n), &s.servers[n].restartable, how)
}

// signal kills or stops a program, and starts or continues it at the end.
func (s *schedule) signal(name string, p *restartable, how string) (begin, end func()) {
	sig := map[string]syscall.Signal{"kill": syscall.SIGKILL, "stop": syscall.SIGSTOP, "terminate": syscall.SIGTERM}[how]
	return s.exclusive(name, how,
		func() { p.p.cmd.Process.Signal(sig) },
		func() {
			if how == "stop" {
				p.p.cmd.Process.Signal(syscall.SIGCONT)
				return
			}
			<-p.p.done
			p.start()
		})
}

func (s *schedule) connection(name, how string) (begin, end func()) {
	set := func(fault string) {
		for _, l := range s.links[name] {
			l.set(fault)
		}
	}
	return s.exclusive("connections of "+name, how, func() { set(how) }, func() { set("") })
}

func (s *schedule) manifest(bridge, id, how string) (begin, end func()) {
	b := s.bridges[bridge]
	keep := func() { b.versions[id]++; b.write(s, id) }
	return s.exclusive("manifest of "+id+" on "+bridge, how,
		func() {
			switch how {
			case "edited":
				keep()
			case "half-written":
				text := b.manifest(id)
				write(s, b.path(id), text[:len(text)/2])
			default:
				if err := os.Remove(b.path(id)); err != nil && !os.IsNotExist(err) {
					s.Error(err)
				}
			}
		},
		func() {
			switch how {
			case "half-written", "removed":
				keep()
			case "removed for ever":
				delete(b.versions, id)
			}
		})
}

func (s *schedule) catalog(how string) (begin, end func()) {
	return s.exclusive("the catalog's bucket", how,
		func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			js, err := jetstream.New(s.operator)
			if err != nil {
				s.Fatal(err)
			}
			if how == "deleted" {
				err = js.DeleteStream(ctx, "KV_ext_catalog")
			} else if stream, e := js.Stream(ctx, "KV_ext_catalog"); e != nil {
				err = e
			} else {
				err = stream.Purge(ctx)
			}
			if err != nil {
				s.note("that failed: %v", err) // while a NATS server is away
			}
		}, func() {})
}

func (s *schedule) verb(bridge, id, how string) (begin, end func()) {
	request := func(method string) error {
		_, err := s.operator.Request("ext.control."+bridge, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":%q,"params":{"id":%q}}`, method, id), 2*time.Second)
		return err
	}
	return s.exclusive(id+" on "+bridge, how,
		func() {
			if how == "kill child" {
				if pids := childrenOf(s.programs[bridge].p.cmd.Process.Pid); len(pids) > 0 {
					syscall.Kill(pids[len(pids)-1], syscall.SIGKILL)
				}
				return
			}
			if err := request(how); err != nil {
				s.note("that failed: %v", err) // while the bridge is away
			}
		}, func() {
			if how == "drain" { // a restart ends a drain; the bridge can be away now, or have lost the answer
				go func() { // ends when the bridge has answered, or with the test
					for request("restart") != nil && s.Context().Err() == nil {
					}
				}()
			}
		})
}

// runTestService is the main function of a native service with the id service. It ends on SIGTERM.
func runTestService() {
	nc, err := mesh.Connect(os.Getenv("NATS_URL"), nats.RetryOnFailedConnect(true)) // it may be started while its connections are cut
	if err != nil {
		fatal(err)
	}
	interval, err := time.ParseDuration(os.Getenv("E2E_HEARTBEAT"))
	if err != nil {
		fatal(err)
	}
	box := &mesh.Toolbox{Version: "1.0.0"}
	mesh.AddTool(box, "echo", "Returns nothing.", func(context.Context, struct{}) (string, error) { return "", nil })
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := mesh.Serve(ctx, nc, mesh.Service{ID: "service", Version: "1.0.0", Handler: box, HeartbeatInterval: interval}); err != nil {
		fatal(err)
	}
}
