package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// load makes calls at a constant rate, whether they succeed or not, and records their outcomes.
type load struct {
	t    *testing.T
	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	took   []time.Duration // of the calls that were answered
	faults []error
}

// maxLoad is the number of calls that a load has in flight at most. An extension with the default settings accepts 32 of
// one caller; a busy machine, which cannot answer as many calls as are made, would refuse some.
const maxLoad = 24

// startLoad makes rate calls a second until end is called, or fewer if the machine cannot answer so many.
func startLoad(t *testing.T, rate int, call func(context.Context) error) *load {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &load{t: t, stop: stop}
	l.done.Go(func() { // ends with stop
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		inFlight := make(chan struct{}, maxLoad)
		for began, made := time.Now(), 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			// Calls that the ticker missed on a busy machine are made now.
			for due := int(time.Since(began) * time.Duration(rate) / time.Second); made < due; made++ {
				select {
				case inFlight <- struct{}{}:
				default:
					continue
				}
				l.done.Go(func() { // ends with its call
					l.one(context.WithoutCancel(ctx), call)
					<-inFlight
				})
			}
		}
	})
	t.Cleanup(func() { stop(); l.done.Wait() })
	return l
}

func (l *load) one(ctx context.Context, call func(context.Context) error) {
	began := time.Now()
	err := call(ctx)
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.faults = append(l.faults, fmt.Errorf("after %s: %w", took, err))
		return
	}
	l.took = append(l.took, took)
}

func (l *load) answered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.took)
}

// more waits until n more calls are answered.
func (l *load) more(n int) {
	l.t.Helper()
	before := l.answered()
	eventually(l.t, time.Minute, fmt.Sprintf("%d more calls", n), func() bool { return l.answered() >= before+n })
}

// end stops the load and fails the test for every lost call.
func (l *load) end(what string) {
	l.t.Helper()
	l.stop()
	l.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, err := range l.faults {
		if i == 10 {
			l.t.Errorf("… and %d more", len(l.faults)-i)
			break
		}
		l.t.Errorf("lost: %v", err)
	}
	if len(l.took) == 0 {
		l.t.Error("no call was answered")
		return
	}
	slices.Sort(l.took)
	at := func(p int) time.Duration { return l.took[(len(l.took)-1)*p/100].Round(10 * time.Microsecond) }
	l.t.Logf("%s: %d calls, %d lost; p50 %s, p99 %s, longest %s", what, len(l.took)+len(l.faults), len(l.faults), at(50), at(99), at(100))
}

// caller returns a client with the settings that agents should use: mesh.Connect, and a catalog that is followed.
func caller(t *testing.T, url string, options ...nats.Option) (*mesh.Client, *mesh.Catalog) {
	t.Helper()
	nc, err := mesh.Connect(url, append(options, nats.Timeout(time.Minute))...)
	if err != nil {
		t.Fatal(err)
	}
	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { catalog.Run(ctx) }) // ends with cancel
	t.Cleanup(func() { cancel(); following.Wait(); nc.Close() })
	return mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog}), catalog
}

// instances returns the number of ready instances of id, of any version if version is empty.
func instances(catalog *mesh.Catalog, id, version string) int {
	n := 0
	if e, ok := catalog.Get(id); ok && e.State != nil {
		for _, i := range e.State.Instances {
			if i.State == "ready" && (version == "" || i.Version == version) {
				n++
			}
		}
	}
	return n
}

// writePrimes writes a manifest, with this version, that runs the Go example as a child of a bridge.
func writePrimes(t *testing.T, binary, version string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "extensions")
	write(t, filepath.Join(dir, "primes", "plugin.toml"), fmt.Sprintf(`
[plugin]
id = "primes"
version = %q
[capabilities]
tools = ["factor", "count"]
[transport]
type = "stdio"
command = %q
args = ["--stdio"]
`, version, binary))
	return dir
}

// TestRollingUpgrade replaces two bridges, one after the other, by bridges with a new version of the extension, during
// calls. No call may be lost.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	binary := program(t, "primes")
	bridge := func(name, version string) *process {
		return start(t, env, program(t, "stdio-bridge"), "--name", name, "--search-path", writePrimes(t, binary, version), "--state-dir", t.TempDir())
	}
	running := map[string]*process{"one": bridge("one", "1.0.0"), "two": bridge("two", "1.0.0")}
	client, catalog := caller(t, url)
	eventually(t, time.Minute, "both bridges are ready, with their tools", func() bool {
		_, _, known := catalog.Tool("ext_primes_factor")
		return known && instances(catalog, "primes", "1.0.0") == 2
	})

	rate := callRate()
	calls := startLoad(t, rate, func(ctx context.Context) error {
		got, err := client.Call(ctx, "ext_primes_factor", json.RawMessage(`{"n":1001}`))
		if err == nil && string(got) != `[7,11,13]` {
			return fmt.Errorf("answered %s", got)
		}
		return err
	})
	calls.more(rate)
	for i, name := range []string{"one", "two"} {
		running[name].stop(t, 10*time.Second)
		if running[name].err != nil {
			t.Errorf("bridge %s ended with %v", name, running[name].err)
		}
		calls.more(rate)
		running[name] = bridge(name, "1.1.0")
		eventually(t, time.Minute, "the new version is ready", func() bool { return instances(catalog, "primes", "1.1.0") == i+1 })
		calls.more(rate)
	}
	calls.end(fmt.Sprintf("two bridges replaced under %d calls a second", rate))
	eventually(t, time.Minute, "the catalog shows the new version", func() bool { e, _ := catalog.Get("primes"); return e.Spec.Version == "1.1.0" })
}

// TestRollingRestart restarts an extension with two replicas on each of two bridges with extctl, during calls. No call may be
// lost.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	for _, name := range []string{"one", "two"} {
		config := filepath.Join(t.TempDir(), "extensions.yaml")
		write(t, config, fmt.Sprintf("extensions:\n  search_paths: [%q]\n  entries:\n    primes: {replicas: 2}\n", writePrimes(t, program(t, "primes"), "1.0.0")))
		start(t, env, program(t, "stdio-bridge"), "--name", name, "--config", config, "--state-dir", t.TempDir())
	}
	client, catalog := caller(t, url)
	eventually(t, time.Minute, "four instances are ready, with their tools", func() bool {
		_, _, known := catalog.Tool("ext_primes_factor")
		return known && instances(catalog, "primes", "") == 4
	})
	calls := startLoad(t, callRate(), func(ctx context.Context) error {
		got, err := client.Call(ctx, "ext_primes_factor", json.RawMessage(`{"n":1001}`))
		if err == nil && string(got) != `[7,11,13]` {
			return fmt.Errorf("answered %s", got)
		}
		return err
	})
	calls.more(callRate() / 2)
	stdout, stderr, code := extctl(t, url, "restart", "primes")
	if code != 0 || strings.Count(stdout, "ready after") != 4 {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	calls.more(callRate() / 2)
	calls.end("four instances restarted one after the other")
}

// callRate returns the calls a second while bridges and servers are replaced: as many as docs/operations.md states, if this
// is a measurement.
func callRate() int {
	if slowTests() && !raceEnabled {
		return 500
	}
	return 100
}

// rounds returns how often a service is stopped under load.
func rounds() int {
	if nightlyTests() {
		return 100
	}
	return 3
}

// TestStopUnderLoad repeatedly replaces a service under load: it starts another instance and then stops the former one. No
// call may be lost.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	start(t, []string{"NATS_URL=" + url}, program(t, "registry"))
	binary := program(t, "primes")
	// Factoring the second number takes a few milliseconds, so that there are always calls in flight.
	stopUnderLoad(t, url, rounds(), "ext_primes_factor", []string{`{"n":1001}`, `{"n":999999999989}`}, func() *process {
		return start(t, nil, binary, "--nats-url", url)
	})
}

// TestShellStopUnderLoad does the same with a shell service, which uses no library of ours and is slow.
func TestShellStopUnderLoad(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	start(t, []string{"NATS_URL=" + url}, program(t, "registry"))
	stopUnderLoad(t, url, min(3, rounds()/3), "ext_disk_mounts", []string{`{}`}, func() *process {
		return start(t, nil, "bash", "../examples/services/disk/disk.sh", "--nats-url", url)
	})
}

// stopUnderLoad calls tool, with each of args in turn, while its service is replaced rounds times.
func stopUnderLoad(t *testing.T, url string, rounds int, tool string, args []string, run func() *process) {
	t.Helper()
	client, catalog := caller(t, url)
	old := run()
	eventually(t, time.Minute, tool+" is in the catalog", func() bool { _, _, ok := catalog.Tool(tool); return ok })
	e, _, _ := catalog.Tool(tool)
	ready := func(n int) func() bool { return func() bool { return instances(catalog, e.ID, "") == n } }
	eventually(t, time.Minute, "it is ready", ready(1))
	rate := map[string]int{"disk": 5, "clockpy": 50, "words": 200, "primes": 100}[e.ID]
	if raceEnabled {
		rate /= 4
	}
	var made atomic.Int64
	calls := startLoad(t, rate, func(ctx context.Context) error {
		_, err := client.Call(ctx, tool, json.RawMessage(args[int(made.Add(1))%len(args)]))
		return err
	})
	for range rounds {
		next := run()
		eventually(t, time.Minute, "the next is ready", ready(2))
		calls.more(max(3, rate/10))
		old.stop(t, 20*time.Second)
		if old.err != nil {
			t.Errorf("it ended with %v", old.err)
		}
		old = next
		eventually(t, time.Minute, "one is left", ready(1))
	}
	calls.end(fmt.Sprintf("%s stopped %d times under %d calls a second", e.ID, rounds, rate))
}

// cluster is three servers with the configuration deploy/nats/three.conf.
type cluster struct {
	urls  []string
	nodes []*process
}

func startCluster(t *testing.T) (c cluster) {
	t.Helper()
	var routes []string
	ports := []string{freeport.Addr(t), freeport.Addr(t), freeport.Addr(t)}
	for _, at := range ports {
		routes = append(routes, fmt.Sprintf("%q", "nats://route:"+password("route")+"@"+at))
	}
	for i, at := range ports {
		env := []string{fmt.Sprintf("NATS_SERVER_NAME=nats-%d", i), "NATS_ROUTES=[" + strings.Join(routes, ",") + "]"}
		url, p := startShipped(t, "three.conf", env, `"0.0.0.0:6222"`, fmt.Sprintf("%q", at),
			`lame_duck_grace_period: "5s"`, `lame_duck_grace_period: "1s"`)
		c.urls, c.nodes = append(c.urls, url), append(c.nodes, p)
	}
	return c
}

// at returns the address of node i for a user. Clients learn the addresses of the other nodes from the server.
func (c cluster) at(i int, user string) string { return as(c.urls[i], user) }

// TestLameDuck puts one of three servers into lame-duck mode during calls: the one to which a bridge, a service and a
// registry are connected. Callers on another server may lose at most one call, which was on the route between two servers
// when a subscription ended: NATS drops it (docs/rough_edges.md).
func TestLameDuck(t *testing.T) {
	slowOnly(t, "three servers under load")
	t.Parallel()
	c := startCluster(t)
	env := func(i int, user string) []string { return []string{"NATS_URL=" + c.at(i, user)} }
	for i := range 2 {
		start(t, env(i, "registry"), program(t, "registry"), "--inbox-prefix", "_INBOX.registry")
	}
	binary := program(t, "primes")
	for i, name := range []string{"bridge-0", "bridge-1"} {
		start(t, env(i, name), program(t, "stdio-bridge"), "--name", name, "--inbox-prefix", "_INBOX."+name,
			"--search-path", writePrimes(t, binary, "1.0.0"), "--state-dir", t.TempDir())
	}
	start(t, env(0, "primes"), binary, "--inbox-prefix", "_INBOX.primes")
	client, catalog := caller(t, c.at(2, "agent"), nats.CustomInboxPrefix("_INBOX.agent"))
	eventually(t, 60*time.Second, "both bridges and the service are ready, with their tools", func() bool {
		_, _, known := catalog.Tool("ext_primes_factor")
		return known && instances(catalog, "primes", "") == 3
	})
	rate := callRate()
	var onRoute atomic.Int64
	calls := startLoad(t, rate, func(ctx context.Context) error {
		_, err := client.Call(ctx, "ext_primes_factor", json.RawMessage(`{"n":1001}`))
		if silent := errors.Is(err, rpc.CodeExited) || errors.Is(err, rpc.CodeTimeout); silent && onRoute.Add(1) == 1 {
			t.Logf("on the route: %v", err)
			return nil
		}
		return err
	})
	calls.more(rate)
	if err := c.nodes[0].cmd.Process.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.nodes[0].done:
	case <-time.After(60 * time.Second):
		t.Fatal("the server does not end")
	}
	calls.more(rate)
	calls.end(fmt.Sprintf("a server of three in lame-duck mode under %d calls a second", rate))
	eventually(t, time.Minute, "all are ready", func() bool { return instances(catalog, "primes", "") == 3 })
}
