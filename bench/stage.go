package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

const prefix = wire.Prefix(wire.DefaultPrefix)

// stage is what a table is measured on: NATS servers and processes, and this program's own connections to them.
type stage struct {
	setup
	dir      string // directory of all files, removed in the end
	servers  []server
	programs map[string]*process // by name, with the servers; a restarted one replaces the one before
	nc       *nats.Conn          // for requests that are not measured calls
	cleanups []func()            // ends everything, in the reverse order
}

// server is a NATS server. Its ports are fixed, so that it comes back at the same address.
type server struct {
	name                string
	client, route, http int
}

// set starts NATS servers: one, or a cluster. Close must be called even after a failure.
func (s *stage) set(ctx context.Context, set setup, servers int) {
	s.setup, s.programs = set, map[string]*process{}
	s.dir = must(os.MkdirTemp("", "extmesh-bench-"))
	s.onClose(func() { os.RemoveAll(s.dir) })
	if s.logs == "" {
		s.logs = s.dir
	}
	check(os.MkdirAll(s.logs, 0o755))
	ports := freePorts(3 * servers)
	for i := range servers {
		s.servers = append(s.servers, server{fmt.Sprint("n", i+1), ports[3*i], ports[3*i+1], ports[3*i+2]})
	}
	for i := range servers {
		s.startServer(i)
	}
	until(ctx, 30*time.Second, "a connection to NATS", func() { s.nc = s.connect(s.urls(0), "requests") })
}

// startServer starts one server with the settings of docs/operations.md, for the first time or again.
func (s *stage) startServer(n int) {
	srv := s.servers[n]
	text := fmt.Sprintf("server_name: %s\nlisten: \"127.0.0.1:%d\"\nhttp: \"127.0.0.1:%d\"\njetstream { store_dir: %q }\n"+
		"ping_interval: \"2s\"\nping_max: 2\nmax_payload: 4MB\nwrite_deadline: \"30s\"\n", srv.name, srv.client, srv.http, filepath.Join(s.dir, srv.name))
	if len(s.servers) > 1 {
		text += fmt.Sprintf("cluster { name: bench, listen: \"127.0.0.1:%d\", routes: [", srv.route)
		for _, other := range s.servers {
			text += fmt.Sprintf("\"nats://127.0.0.1:%d\", ", other.route)
		}
		text += "] }\n"
	}
	config := filepath.Join(s.dir, srv.name+".conf")
	check(os.WriteFile(config, []byte(text), 0o600))
	s.startRole(srv.name, "natsd", "NATS_CONFIG="+config)
}

// freePorts finds ports that are not in use at the moment.
func freePorts(n int) (ports []int) {
	for range n {
		l := must(net.Listen("tcp", "127.0.0.1:0"))
		defer l.Close() // only after the last one is found: all are different
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func (s *stage) onClose(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *stage) close() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

func (s *stage) url(server int) string {
	return fmt.Sprint("nats://127.0.0.1:", s.servers[server%len(s.servers)].client)
}

// urls are the addresses of all servers as clients have them, beginning with one of them.
func (s *stage) urls(first int) string {
	all := s.url(first)
	for i := 1; i < len(s.servers); i++ {
		all += "," + s.url(first+i)
	}
	return all
}

// path is where a program is. The program bench is also its own server and its own extensions (roles.go).
func (s *stage) path(program string) string { return filepath.Join(s.bin, program) }

// start starts a program. It connects to the first server unless env has another NATS_URL.
func (s *stage) start(name, program string, env []string, args ...string) *process {
	p := startProcess(filepath.Join(s.logs, name+".log"), append([]string{"NATS_URL=" + s.url(0)}, env...), s.path(program), args...)
	s.programs[name] = p
	s.onClose(p.end)
	return p
}

func (s *stage) startRole(name, role string, env ...string) {
	s.start(name, "bench", append(env, roleVar+"="+role))
}

func (s *stage) pid(name string) int { return s.programs[name].pid() }

// startBridge starts a bridge with the extensions in a directory of the stage.
func (s *stage) startBridge(name, dir string, env ...string) *process {
	return s.start("bridge-"+name, "stdio-bridge", env, "--name", name, "--search-path", filepath.Join(s.dir, dir),
		"--state-dir", filepath.Join(s.dir, "state-"+name))
}

// manifest writes an extension with the tool echo into a directory of the stage. Its command is this program in a role,
// unless there is another one.
func (s *stage) manifest(dir, id, role string, command ...string) {
	dir = filepath.Join(s.dir, dir, id)
	check(os.MkdirAll(dir, 0o755))
	if len(command) == 0 {
		command = []string{s.path("bench")}
	}
	args := must(json.Marshal(command[1:])) // looks the same in TOML
	check(os.WriteFile(filepath.Join(dir, "plugin.toml"), fmt.Appendf(nil, `[plugin]
id = %q
version = "1.0.0"
[capabilities]
tools = ["echo"]
[transport]
type = "stdio"
dialect = "ext"
command = %q
args = %s
env = { %s = %q }
`, id, command[0], args, roleVar, role), 0o644))
}

// connect connects this program. It detects a lost server the way the programs do, and discards the errors of that time.
func (s *stage) connect(urls, name string, more ...nats.Option) *nats.Conn {
	options := append(natsconn.Defaults(), nats.Name("bench-"+name), nats.DontRandomize(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	nc := must(nats.Connect(urls, append(options, more...)...))
	s.onClose(nc.Close)
	return nc
}

// request calls a method of a program over NATS and decodes its result.
func (s *stage) request(ctx context.Context, subject, method string, result any) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	m := must(s.nc.RequestWithContext(ctx, subject, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":%q}`, method)))
	var answer struct{ Result, Error json.RawMessage }
	check(json.Unmarshal(m.Data, &answer))
	if answer.Result == nil {
		fail("%s on %s: %s", method, subject, answer.Error)
	}
	check(json.Unmarshal(answer.Result, result))
}

// child is the process id of an extension's child, as its bridge reports it.
func (s *stage) child(ctx context.Context, name, id string) int {
	var status bridge.Status
	s.request(ctx, prefix.Control(name), "status", &status)
	for _, i := range status.Instances {
		if i.ID == id && i.PID != 0 {
			return i.PID
		}
	}
	fail("bridge %s has no child of %s", name, id)
	return 0
}

func (s *stage) registryStatus(ctx context.Context) (st registry.Status) {
	s.request(ctx, prefix.RegistryRPC(), "status", &st)
	return st
}

// process is a program that was started. Its standard error is appended to a log file. Its standard input stays open
// until it, or this program, has ended.
type process struct {
	*exec.Cmd
	stop context.CancelFunc
	done chan struct{} // closed when it has ended
}

func startProcess(log string, env []string, path string, args ...string) *process {
	ctx, stop := context.WithCancel(context.Background())
	p := &process{exec.CommandContext(ctx, path, args...), stop, make(chan struct{})}
	p.Cancel = func() error {
		_ = signalProcess(p.pid(), sigCont) // a stopped process cannot end
		return signalProcess(p.pid(), syscall.SIGTERM)
	}
	p.WaitDelay = 6 * time.Second // it is killed then
	file := must(os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer file.Close()
	p.Env, p.Stderr = append(os.Environ(), env...), file
	must(p.StdinPipe())
	check(p.Start())
	go func() { // owned by end, which waits for done; ends with the process
		_ = p.Wait() // the exit status does not matter: processes end by signals here
		close(p.done)
	}()
	return p
}

func (p *process) pid() int { return p.Process.Pid }

// end ends the process and waits.
func (p *process) end() { p.stop(); <-p.done }

// SIGSTOP and SIGCONT by their numbers on Linux: this must also compile where they have no names.
const (
	sigCont = syscall.Signal(18)
	sigStop = syscall.Signal(19)
)

// signalProcess sends a signal to a process that this program or another one started.
func signalProcess(pid int, sig os.Signal) error { return must(os.FindProcess(pid)).Signal(sig) }

// cpuTime is the processor time that the threads of a process have used, to the nanosecond. Threads that have ended
// are not included; the Go runtime keeps its threads.
func cpuTime(pid int) (total time.Duration) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is valid
	for _, t := range tasks {
		data, _ := os.ReadFile(t) // fails if the thread has ended
		var ns time.Duration
		fmt.Sscan(string(data), &ns)
		total += ns
	}
	return total
}

// memory is the resident memory of a process in MB: now, and the maximum since the start or resetPeak.
func memory(pid int) (now, peak float64) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // absent on other systems
	for line := range strings.Lines(string(data)) {
		fmt.Sscanf(line, "VmRSS: %f kB", &now)
		fmt.Sscanf(line, "VmHWM: %f kB", &peak)
	}
	return now / 1024, peak / 1024
}

// resetPeak sets the maximum of memory to the present value (proc(5), clear_refs).
func resetPeak(pid int) { check(os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)) }

// usage is the processor time that some processes used in a span of time.
type usage struct {
	cpu  []time.Duration
	took time.Duration
}

func use(f func(), pids ...int) (u usage) {
	for _, pid := range pids {
		u.cpu = append(u.cpu, -cpuTime(pid))
	}
	start := time.Now()
	f()
	u.took = time.Since(start)
	for i, pid := range pids {
		u.cpu[i] += cpuTime(pid)
	}
	return u
}

// share is the share of a core that a process used.
func (u usage) share(i int) float64 { return u.cpu[i].Seconds() / u.took.Seconds() }

// until repeats a condition of other processes, which cannot notify this one, until it does not fail. The pause is a
// fiftieth of the time that has passed, so the error of a measured time is at most 2 %.
func until(ctx context.Context, limit time.Duration, what string, condition func()) {
	for start := time.Now(); ; {
		err := attempt(what, condition)
		if err == nil {
			return
		}
		passed := time.Since(start)
		if passed > limit {
			fail("not within %s: %w", limit, err)
		}
		pause(ctx, max(200*time.Microsecond, passed/50))
	}
}

// pause fails if ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
		check(ctx.Err())
	}
}

// follower is a connection with a catalog that follows the mesh over it, as every agent has one.
type follower struct {
	nc      *nats.Conn
	catalog *mesh.Catalog
}

// follow starts a follower, which stops with the stage.
func (s *stage) follow(urls, name string) *follower {
	nc := s.connect(urls, name, mesh.ConnectOptions()...)
	f := &follower{nc: nc, catalog: mesh.NewCatalog(nc, mesh.CatalogOptions{})}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f.catalog.Run(ctx) }) // ends in close
	s.onClose(func() { cancel(); wg.Wait() })
	return f
}

// arrival is when a condition became true in each of several catalogs, sorted.
type arrival []time.Duration

const never = time.Duration(math.MaxInt64)

// await waits until a condition is true in the catalogs of all followers; times count from since.
func await(ctx context.Context, followers []*follower, since time.Time, limit time.Duration, condition func(*mesh.Catalog) bool) arrival {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	took := make(arrival, len(followers))
	var wg sync.WaitGroup
	for i, f := range followers {
		wg.Go(func() { // ends with the condition or ctx
			took[i] = never
			if f.catalog.WaitFor(ctx, condition) == nil {
				took[i] = time.Since(since)
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took
}

// last is when the last catalog had it; it fails if one never had.
func (a arrival) last() time.Duration {
	last := a[len(a)-1]
	if last == never {
		fail("a follower did not get the change in time")
	}
	return last
}

// String is when half of the catalogs and the last one had it.
func (a arrival) String() string { return whole(a[len(a)/2]) + " / " + whole(a[len(a)-1]) }

// whole is a time in ms.
func whole(d time.Duration) string {
	if d == never {
		return "never"
	}
	return fmt.Sprint(d.Milliseconds())
}

// differences names the documents that are not the same in the catalogs of followers and in the bucket, which is read
// again. Changes that are still on their way have a few seconds to arrive.
func (s *stage) differences(ctx context.Context, followers []*follower) (keys []string) {
	for deadline := time.Now().Add(5 * time.Second); ; pause(ctx, 200*time.Millisecond) {
		want := documents(must(mesh.LoadCatalog(ctx, s.nc, mesh.CatalogOptions{})))
		keys = nil
		for _, f := range followers {
			have := documents(f.catalog)
			maps.DeleteFunc(have, func(key, text string) bool { return want[key] == text })
			keys = slices.AppendSeq(keys, maps.Keys(have))
		}
		if len(keys) == 0 || time.Now().After(deadline) {
			return keys
		}
	}
}

// documents are the contents of a catalog as text, by key. The last one also differs if an extension is missing.
func documents(c *mesh.Catalog) map[string]string {
	out := map[string]string{}
	for _, e := range c.All() {
		out[e.ID] = string(must(json.Marshal(e)))
	}
	id, revision := c.Revision()
	out["everything else"] = string(must(json.Marshal([]any{id, revision, len(out), c.Hosts(), c.Skills()})))
	return out
}
