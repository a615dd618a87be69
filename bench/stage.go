package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

const prefix = wire.Prefix(wire.DefaultPrefix)

// pingInterval is that of the shipped configuration of the server and of the programs.
const pingInterval = 2 * time.Second

// stage is what a table is measured on: NATS servers and processes, and this program's own connections to them.
type stage struct {
	setup
	self     string // path of this program, which is also its own server and its own extensions (roles.go)
	dir      string // directory of all files, removed in the end
	servers  []*server
	programs map[string]*process // by name; a restarted one replaces the one before
	nc       *nats.Conn          // for requests that are not measured calls
	cleanups []func()
}

// server is a NATS server. Its ports are fixed, so that it comes back at the same address.
type server struct {
	name                string
	client, route, http int
	*process
}

func (s *server) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.client) }

// set starts NATS servers: one, or a cluster. Close must be called even after a failure.
func (s *stage) set(ctx context.Context, set setup, servers int) {
	s.setup, s.self, s.programs = set, must(os.Executable()), map[string]*process{}
	s.dir = must(os.MkdirTemp("", "extmesh-bench-"))
	if s.logs == "" {
		s.logs = s.dir
	}
	check(os.MkdirAll(s.logs, 0o755))
	ports := freePorts(3 * servers)
	for i := range servers {
		s.servers = append(s.servers, &server{name: fmt.Sprintf("n%d", i+1), client: ports[3*i], route: ports[3*i+1], http: ports[3*i+2]})
	}
	for _, srv := range s.servers {
		s.startServer(srv)
	}
	until(ctx, 30*time.Second, "a connection to NATS", func() { s.nc = s.connect(s.urls(0), "requests") })
}

// startServer starts one server with the settings of docs/operations.md, for the first time or again.
func (s *stage) startServer(srv *server) {
	text := fmt.Sprintf("server_name: %s\nlisten: \"127.0.0.1:%d\"\nhttp: \"127.0.0.1:%d\"\njetstream { store_dir: %q }\n"+
		"ping_interval: %q\nping_max: 2\nmax_payload: 4MB\nwrite_deadline: \"5s\"\n", srv.name, srv.client, srv.http, filepath.Join(s.dir, srv.name), pingInterval.String())
	if len(s.servers) > 1 {
		text += fmt.Sprintf("cluster { name: bench, listen: \"127.0.0.1:%d\", routes: [", srv.route)
		for _, other := range s.servers {
			text += fmt.Sprintf("\"nats://127.0.0.1:%d\", ", other.route)
		}
		text += "] }\n"
	}
	config := filepath.Join(s.dir, srv.name+".conf")
	check(os.WriteFile(config, []byte(text), 0o600))
	srv.process = startProcess(filepath.Join(s.logs, srv.name+".log"), []string{roleVar + "=natsd", "NATS_CONFIG=" + config}, s.self)
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

// close ends this program's connections, then the programs, then the servers.
func (s *stage) close() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
	var wg sync.WaitGroup
	for _, p := range s.programs {
		wg.Go(p.end) // returns within seconds
	}
	wg.Wait()
	for _, srv := range s.servers {
		if srv.process != nil {
			wg.Go(srv.end) // returns within seconds
		}
	}
	wg.Wait()
	os.RemoveAll(s.dir)
}

func (s *stage) onClose(f func()) { s.cleanups = append(s.cleanups, f) }

// urls are the addresses of all servers as clients have them, beginning with one of them.
func (s *stage) urls(first int) string {
	var all []string
	for i := range s.servers {
		all = append(all, s.servers[(first+i)%len(s.servers)].url())
	}
	return strings.Join(all, ",")
}

// start starts one of the built programs. It connects to the first server unless env has another NATS_URL.
func (s *stage) start(name, program string, env []string, args ...string) *process {
	path := filepath.Join(s.bin, program)
	if program == "" {
		path = s.self
	}
	env = append([]string{"NATS_URL=" + s.servers[0].url()}, env...)
	s.programs[name] = startProcess(filepath.Join(s.logs, name+".log"), env, path, args...)
	return s.programs[name]
}

// startRole starts this program in the role of its name.
func (s *stage) startRole(role string, env ...string) *process {
	return s.start(role, "", append(env, roleVar+"="+role))
}

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
		command = []string{s.self}
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

// connect connects this program. It detects a lost server the way the programs do.
func (s *stage) connect(urls, name string, more ...nats.Option) *nats.Conn {
	nc := must(nats.Connect(urls, append([]nats.Option{
		nats.Name("bench-" + name), nats.DontRandomize(), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(2), nats.Timeout(2 * time.Second),
	}, more...)...))
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
func (s *stage) child(ctx context.Context, bridge, id string) int {
	var status struct {
		Instances []struct {
			ID  string
			PID int
		}
	}
	s.request(ctx, prefix.Control(bridge), "status", &status)
	for _, i := range status.Instances {
		if i.ID == id && i.PID != 0 {
			return i.PID
		}
	}
	fail("bridge %s has no child of %s", bridge, id)
	return 0
}

// registryStatus is what is used of the registry's status.
type registryStatus struct {
	Leading                    bool
	Extensions                 map[string]int // by state
	Tools, Pending, Handshakes int
	Traffic                    struct{ Beats, Writes uint64 }
	Replicas                   []struct {
		Name    string
		Leading bool
	}
}

func (s *stage) registryStatus(ctx context.Context) (st registryStatus) {
	s.request(ctx, prefix.RegistryRPC(), "status", &st)
	return st
}
