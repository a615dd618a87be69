package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// scheduledMesh is the mesh of one random schedule: NATS servers, two registries, two bridges and a service, all as
// separate processes. Each program reaches each server through a link of its own, which faults can disturb.
type scheduledMesh struct {
	*testing.T
	servers  []*scheduledServer
	programs map[string]*restartable // by name
	links    map[string][]*link      // by name of the program, one per server
	bridges  map[string]*scheduledBridge
	operator *nats.Conn    // not disturbed
	follower *mesh.Catalog // disturbed
}

// restartable is a program that faults can kill, stop and start again.
type restartable struct {
	run func() *process
	p   *process
}

func (p *restartable) start() { p.p = p.run() }

// ended reports whether the program has ended by itself.
func (p *restartable) ended() bool {
	select {
	case <-p.p.done:
		return true
	default:
		return false
	}
}

// scheduledServer is one NATS server with a fixed port.
type scheduledServer struct {
	restartable
	url string
}

// scheduledBridge is what the files of one bridge contain: the version of each extension that it must run.
type scheduledBridge struct {
	dir      string
	versions map[string]int
	replicas map[string]int // of the ids that have several
}

// newScheduledMesh starts a mesh with one or three NATS servers and waits until all is in the catalog.
func newScheduledMesh(t *testing.T, servers int, heartbeat time.Duration) *scheduledMesh {
	m := &scheduledMesh{T: t, programs: map[string]*restartable{}, links: map[string][]*link{}, bridges: map[string]*scheduledBridge{}}
	m.startServers(servers)
	urls := func(name string) string {
		var all []string
		for _, s := range m.servers {
			l := newLink(t, strings.TrimPrefix(s.url, "nats://"))
			m.links[name] = append(m.links[name], l)
			all = append(all, "nats://"+l.Addr().String())
		}
		return strings.Join(all, ",")
	}
	add := func(name string, env []string, command string, args ...string) {
		env = append(env, "NATS_URL="+urls(name))
		p := &restartable{run: func() *process { return start(t, env, command, args...) }}
		p.start()
		m.programs[name] = p
	}
	for _, name := range []string{"registry-a", "registry-b"} {
		add(name, nil, program(t, "registry"), "--name", name)
	}
	for _, name := range []string{"bridge-a", "bridge-b"} {
		b := &scheduledBridge{dir: t.TempDir(), versions: map[string]int{"shared": 1, "twice": 1, "only-" + name: 1}, replicas: map[string]int{"twice": 2}}
		m.bridges[name] = b
		write(t, filepath.Join(b.dir, "extensions.yaml"), `extensions:
  watch: {reload: true, debounce_ms: 50}
  supervision: {max_restarts: 1000, base_backoff: 50ms, max_backoff: 500ms, handshake_timeout: 1m}
  entries: {twice: {replicas: 2}}
`)
		for id := range b.versions {
			b.write(t, id)
		}
		add(name, nil, program(t, "stdio-bridge"), "--name", name, "--config", filepath.Join(b.dir, "extensions.yaml"),
			"--search-path", filepath.Join(b.dir, "ext"), "--state-dir", filepath.Join(b.dir, "state"))
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	add("service", []string{"E2E_MODE=service", "E2E_HEARTBEAT=" + heartbeat.String()}, exe)
	m.operator = connect(t, m.urls())
	m.follow(urls("follower"))
	return m
}

// follow runs the follower until the test ends.
func (m *scheduledMesh) follow(url string) {
	nc, err := mesh.Connect(url, nats.RetryOnFailedConnect(true))
	if err != nil {
		m.Fatal(err)
	}
	m.follower = mesh.NewCatalog(nc, mesh.CatalogOptions{})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { m.follower.Run(ctx) }) // ends with ctx
	m.Cleanup(func() { stop(); wg.Wait(); nc.Close() })
}

func (m *scheduledMesh) urls() string {
	var all []string
	for _, s := range m.servers {
		all = append(all, s.url)
	}
	return strings.Join(all, ",")
}

// startServers starts the NATS servers. Clients are not told the addresses of other servers: they would go around the links.
func (m *scheduledMesh) startServers(n int) {
	exe, err := os.Executable()
	if err != nil {
		m.Fatal(err)
	}
	var ports, routes []int
	for range n {
		ports, routes = append(ports, freeport.Port(m)), append(routes, freeport.Port(m))
	}
	for i := range n {
		dir := m.TempDir()
		var cluster string
		if n > 1 {
			var all []string
			for _, port := range routes {
				all = append(all, fmt.Sprintf("nats://127.0.0.1:%d", port))
			}
			cluster = fmt.Sprintf("cluster { name: test, listen: \"127.0.0.1:%d\", no_advertise: true, routes: [%s] }", routes[i], strings.Join(all, ", "))
		}
		config := filepath.Join(dir, "nats.conf")
		write(m, config, fmt.Sprintf("server_name: n%d\nlisten: \"127.0.0.1:%d\"\njetstream { store_dir: %q, max_mem: 64MB, max_file: 256MB }\nping_interval: \"2s\"\nping_max: 2\n%s\n",
			i, ports[i], filepath.Join(dir, "js"), cluster))
		s := &scheduledServer{url: fmt.Sprintf("nats://127.0.0.1:%d", ports[i])}
		// A port can be in use for a moment: by a child between its fork and its exec, or by the server's own old sockets.
		s.run = func() *process {
			for deadline := time.Now().Add(time.Minute); ; {
				p := start(m, []string{"E2E_MODE=natsd", "E2E_CONFIG=" + config}, exe)
				for !strings.Contains(p.output(), "Listening for client connections") {
					if !sleepUnless(p.done, 20*time.Millisecond) {
						break
					}
				}
				if strings.Contains(p.output(), "Listening for client connections") {
					return p
				}
				if time.Now().After(deadline) {
					m.Fatalf("the NATS server does not start:\n%s", p.output())
				}
			}
		}
		m.servers = append(m.servers, s)
	}
	var wg sync.WaitGroup
	for _, s := range m.servers {
		wg.Go(s.start) // ends when the server listens
	}
	wg.Wait()
}

// sleepUnless waits for d and returns true, or returns false when done is closed.
func sleepUnless(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return false
	case <-time.After(d):
		return true
	}
}

func (b *scheduledBridge) path(id string) string {
	return filepath.Join(b.dir, "ext", id, "plugin.toml")
}

func (b *scheduledBridge) manifest(id string) string {
	exe, _ := os.Executable()
	return fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.%d\"\n[capabilities]\ntools = [\"echo\"]\n[transport]\ntype = \"stdio\"\ncommand = %q\nenv = { E2E_MODE = \"child:healthy\" }\n",
		id, b.versions[id], exe)
}

// write writes the manifest of the extension's version.
func (b *scheduledBridge) write(t testing.TB, id string) { write(t, b.path(id), b.manifest(id)) }

// wrong compares the catalog, as it is stored and as the follower has it, with what really runs. It returns the first
// difference, or "".
func (m *scheduledMesh) wrong() string {
	runs := map[string][]string{} // by id: instances as bridge/instance@version
	for _, name := range slices.Sorted(maps.Keys(m.bridges)) {
		if difference := m.bridgeRuns(name, runs); difference != "" {
			return difference
		}
	}
	runs["service"] = nil
	stored, err := m.stored()
	if err != nil {
		return fmt.Sprintf("the catalog cannot be read: %v", err)
	}
	for what, c := range map[string]*mesh.Catalog{"the stored catalog": stored, "the follower": m.follower} {
		if difference := m.differs(c, runs); difference != "" {
			return what + ": " + difference
		}
	}
	return ""
}

// stored reads the catalog as it is stored. A NATS server that was stopped answers with what it had, until it has caught up
// (docs/rough_edges.md). So it is read again for a second while it is behind the follower, as it also is after a purge.
func (m *scheduledMesh) stored() (*mesh.Catalog, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	bucket, received := m.follower.Revision()
	for deadline := time.Now().Add(time.Second); ; time.Sleep(50 * time.Millisecond) {
		c, err := mesh.LoadCatalog(ctx, m.operator, mesh.CatalogOptions{})
		if err != nil {
			return nil, err
		}
		b, revision := c.Revision()
		if b != bucket || revision >= received || time.Now().After(deadline) {
			return c, nil
		}
	}
}

// bridgeRuns adds what the bridge runs, and compares it with its files.
func (m *scheduledMesh) bridgeRuns(name string, runs map[string][]string) string {
	var status struct {
		Result struct {
			Instances []struct{ ID, Instance, State string }
		}
	}
	answer, err := m.operator.Request("ext.control."+name, []byte(`{"jsonrpc":"2.0","id":1,"method":"status"}`), 2*time.Second)
	if err == nil {
		err = json.Unmarshal(answer.Data, &status)
	}
	if err != nil {
		return fmt.Sprintf("%s does not answer: %v", name, err)
	}
	b, count := m.bridges[name], map[string]int{}
	for _, i := range status.Result.Instances {
		if i.State != "ready" {
			return fmt.Sprintf("%s: %s is %s", name, i.ID, i.State)
		}
		count[i.ID]++
		runs[i.ID] = append(runs[i.ID], fmt.Sprintf("%s/%s@1.0.%d", name, i.Instance, b.versions[i.ID]))
	}
	want := map[string]int{}
	for id := range b.versions {
		want[id] = max(1, b.replicas[id])
	}
	if !maps.Equal(count, want) {
		return fmt.Sprintf("%s runs %v, its files are %v", name, count, want)
	}
	return ""
}

// differs compares a catalog with what runs. An extension that nothing runs must not be shown as running, but may be listed.
func (m *scheduledMesh) differs(c *mesh.Catalog, runs map[string][]string) string {
	for _, e := range c.All() {
		if _, ok := runs[e.ID]; ok || e.State == nil || len(e.State.Instances) == 0 {
			continue
		}
		return fmt.Sprintf("%s is %s with %+v, but nothing runs it", e.ID, e.State.State, e.State.Instances)
	}
	for _, id := range slices.Sorted(maps.Keys(runs)) {
		e, _ := c.Get(id)
		if e.State == nil || e.State.State != "ready" {
			return fmt.Sprintf("%s is not ready: %+v", id, e.State)
		}
		if !hasTool(c, id) {
			return fmt.Sprintf("%s has no tool", id)
		}
		if difference := m.instances(e, runs[id]); difference != "" {
			return difference
		}
	}
	return ""
}

func hasTool(c *mesh.Catalog, id string) bool {
	e, _, err := c.Resolve(id + "/echo")
	return err == nil && e.ID == id
}

// instances compares the instances of an extension with those that run, and pings each. Of the service, only whether
// those shown as ready answer is compared: the catalog keeps instances that have been killed as lost for a while.
func (m *scheduledMesh) instances(e mesh.Extension, want []string) string {
	var shown []string
	for _, i := range e.State.Instances {
		if e.ID == "service" && i.State != "ready" {
			continue
		}
		shown = append(shown, fmt.Sprintf("%s/%s@%s", i.Bridge, i.Instance, i.Version))
		if i.State != "ready" {
			return fmt.Sprintf("%s: instance %s is %s (%s)", e.ID, i.Instance, i.State, i.Reason)
		}
		if _, err := m.operator.Request(e.Spec.Subject+"."+i.Instance, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`), 2*time.Second); err != nil {
			return fmt.Sprintf("%s: instance %s is shown as ready and does not answer: %v", e.ID, i.Instance, err)
		}
	}
	slices.Sort(shown)
	slices.Sort(want)
	if e.ID == "service" && len(shown) == 1 || slices.Equal(shown, want) {
		return ""
	}
	return fmt.Sprintf("%s: shown are %v, and %v run", e.ID, shown, want)
}

// link is a TCP proxy between one program and one NATS server.
type link struct {
	net.Listener
	server string

	mu     sync.Mutex
	broken string        // "", or the fault: cut, stalled or slow
	healed chan struct{} // closed when the fault ends
	conns  map[net.Conn]bool
}

func newLink(t testing.TB, server string) *link {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{Listener: listener, server: server, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() { // ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { l.forward(c) }) // ends with the connection
		}
	})
	t.Cleanup(func() { l.Close(); l.set("cut"); wg.Wait() })
	return l
}

// set begins a fault, or ends it if fault is "".
func (l *link) set(fault string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.healed != nil {
		close(l.healed)
		l.healed = nil
	}
	if l.broken = fault; fault != "" {
		l.healed = make(chan struct{})
	}
	if fault == "cut" {
		for c := range l.conns {
			c.Close()
		}
	}
}

func (l *link) state() (fault string, healed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken, l.healed
}

// keep adds a connection that a cut closes. It returns false if the link is cut already.
func (l *link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = true
	return l.broken != "cut"
}

func (l *link) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	c.Close()
}

func (l *link) forward(client net.Conn) {
	defer l.drop(client)
	if !l.keep(client) {
		return
	}
	server, err := net.DialTimeout("tcp", l.server, 5*time.Second)
	if err != nil {
		return
	}
	defer l.drop(server)
	if !l.keep(server) {
		return
	}
	var wg sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
		wg.Go(func() { // ends when either connection is closed
			defer to.Close()
			l.copy(to, from)
		})
	}
	wg.Wait()
}

// copy passes bytes on. A stalled link holds them back, as a network without connectivity does; a slow one delays each
// piece.
func (l *link) copy(to, from net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		switch fault, healed := l.state(); fault {
		case "stalled":
			<-healed
		case "slow":
			sleepUnless(healed, 100*time.Millisecond)
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
