package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// The phases of TestMessageLoss, and the catalog expected at the end of each.
const (
	starting = iota + 1
	reloading
	crashing
	deregistering
	stopping
	failover // from one registry to the other
)

var wantCatalog = map[int]string{
	starting: `
declared lost 0 []
goer ready 1 [say]
talker ready 1 [say]
weather ready 1 [today]
host b1 ready [goer talker]
skill cook [b1]`,
	reloading: `
comer ready 1 [say]
talker ready 1 [say shout]
weather ready 1 [today]
host b1 ready [comer talker]
skill cook [b1]
skill sing [b1]`,
	crashing: `
comer ready 1 [say]
talker ready 1 [whisper]
weather ready 1 [today]
host b1 ready [comer talker]
skill cook [b1]
skill sing [b1]`,
	deregistering: `
comer ready 1 [say]
last ready 1 [say]
talker ready 1 [whisper]
weather gone 1 [today]
host b1 ready [comer last talker]
skill cook [b1]
skill hum [b1]
skill sing [b1]`,
	stopping: `
comer gone 1 [say]
last gone 1 [say]
talker gone 1 [whisper]
weather gone 1 [today]
host b1 lost [comer last talker]`,
}

// catalogLimit is the time within which the catalog must be correct again on an idle machine: three missed heartbeats
// of a second each, ten seconds between two announce requests, and twenty heartbeats between two reports.
const catalogLimit = 25 * time.Second

// TestMessageLoss loses a single message, whatever it is: the catalog must become correct again without help. The losses
// below once left it wrong for ever. With EXTMESH_SLOW=nightly up to four messages of each kind are lost, one per run.
func TestMessageLoss(t *testing.T) {
	t.Parallel()
	losses := []loss{
		{role: "bridge", kind: "host", phase: starting, nth: 1}, // the first full inventory
		{role: "registry", incoming: true, kind: "host", phase: starting, nth: 2},
		{role: "bridge", kind: "host", phase: reloading, nth: 1},
		{role: "bridge", kind: "host", phase: reloading, nth: 2},
		{role: "bridge", kind: "host", phase: crashing, nth: 1},
		{role: "bridge", kind: "host", phase: crashing, nth: 2},
		{role: "bridge", kind: "host", phase: deregistering, nth: 1},
		{role: "bridge", kind: "host", phase: stopping, nth: 1},
		{role: "native", kind: "announce", phase: starting, nth: 1},
		{role: "native", kind: "shutdown", phase: deregistering, nth: 1},
		{role: "registry", kind: "request", phase: starting, nth: 1},
		{role: "follower", incoming: true, kind: "catalog", phase: crashing, nth: 1},
	}
	registries := 1
	if nightlyTests() {
		counts, _ := runWithLoss(t, loss{}, 2)
		losses = nil
		for l, n := range counts {
			for l.nth = 1; l.nth <= min(n, 4); l.nth++ {
				losses = append(losses, l)
			}
		}
		slices.SortFunc(losses, func(a, b loss) int { return strings.Compare(a.String(), b.String()) })
		registries = 2
	}
	var lost atomic.Int64
	t.Run("one", func(t *testing.T) {
		for _, l := range losses {
			t.Run(l.String(), func(t *testing.T) {
				t.Parallel()
				if _, happened := runWithLoss(t, l, registries); happened {
					lost.Add(1)
				}
			})
		}
	})
	// The number of messages of a kind in a phase varies from run to run, so some of the losses may not happen.
	if int(lost.Load()) < len(losses)*3/4 {
		t.Errorf("of %d messages that were to be lost only %d were sent", len(losses), lost.Load())
	}
}

// runWithLoss runs all phases on a mesh that loses l. It returns the number of messages of each kind, and whether l
// happened.
func runWithLoss(t *testing.T, l loss, registries int) (counts map[loss]int, happened bool) {
	m := newLossyMesh(t, l, registries)
	m.setPhase(starting)
	m.extension("goer", "say", "")
	m.extension("talker", "say", "")
	m.skill("cook")
	write(t, filepath.Join(m.dir, "ext", "declared", "plugin.toml"), "[plugin]\nid = \"declared\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"say\"]\n[transport]\ntype = \"nats\"\n")
	m.start()
	m.waitForPhase(starting)

	m.setPhase(reloading)
	m.extension("talker", "say shout", "# another manifest\n")
	m.extension("comer", "say", "")
	m.skill("sing")
	for _, id := range []string{"goer", "declared"} {
		if err := os.RemoveAll(filepath.Join(m.dir, "ext", id)); err != nil {
			t.Fatal(err)
		}
	}
	m.control("reload")
	m.waitForPhase(reloading)

	m.setPhase(crashing)
	m.tools("talker", "whisper")
	m.crash("talker")
	m.waitForPhase(crashing)

	m.setPhase(deregistering)
	m.extension("last", "say", "")
	m.skill("hum")
	m.control("reload")
	m.stopNative()
	m.waitForPhase(deregistering)

	m.setPhase(stopping)
	m.stopBridge()
	m.waitForPhase(stopping)

	if registries > 1 {
		m.setPhase(failover)
		m.deposeLeader()
		m.waitForPhase(stopping)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if l != (loss{}) && !m.lost {
		t.Log("there was no such message this time")
	}
	return maps.Clone(m.counts), m.lost // a copy: the mesh counts until the test ends
}

// lossyMesh is a complete mesh on connections that lose a message, and a client on a connection that does not.
type lossyMesh struct {
	*testing.T
	*lossy
	dir      string
	nc       *nats.Conn // loses nothing
	follower *mesh.Catalog

	registries             []*registry.Registry
	stopRegistries         []func()
	stopNative, stopBridge func()
}

func newLossyMesh(t *testing.T, l loss, registries int) *lossyMesh {
	t.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not come up")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	m := &lossyMesh{T: t, dir: t.TempDir(), lossy: &lossy{server: s, loss: l, counts: map[loss]int{}}}
	m.nc = m.connect(t, "")
	for range registries {
		m.registries = append(m.registries, nil)
	}
	return m
}

// run runs f until the test ends or stop is called.
func (m *lossyMesh) run(f func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(m.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { // ends with stop
		if err := f(ctx); err != nil {
			m.Error(err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	m.Cleanup(stop)
	return stop
}

// start starts all programs at the same time.
func (m *lossyMesh) start() {
	output := new(process) // used only as a buffer that is safe for concurrent use
	log := slog.New(slog.NewTextHandler(output, &slog.HandlerOptions{Level: slog.LevelDebug}))
	m.Cleanup(func() {
		if m.Failed() {
			m.Logf("log:\n%s", output.output())
		}
	})
	m.follower = mesh.NewCatalog(m.connect(m, "follower"), mesh.CatalogOptions{})
	m.run(m.follower.Run)
	for n := range m.registries {
		role := []string{"registry", "second"}[n]
		r := registry.New(m.connect(m, role), registry.Config{Name: role, Version: "1.0.0", Logger: log.With("program", role)})
		m.registries[n] = r
		m.stopRegistries = append(m.stopRegistries, m.run(r.Run))
	}
	settings := config.Default()
	settings.SearchPaths, settings.SkillsDir = []string{filepath.Join(m.dir, "ext")}, filepath.Join(m.dir, "skills")
	settings.Watch.Enabled, settings.HeartbeatInterval = false, time.Second
	m.stopBridge = m.run(bridge.New(m.connect(m, "bridge"), bridge.Config{Name: "b1", Host: "h1", Version: "1.0.0",
		Settings: settings, StateDir: filepath.Join(m.dir, "state"), Logger: log.With("program", "bridge")}).Run)
	box := &mesh.Toolbox{Version: "1.0.0"}
	mesh.AddTool(box, "today", "The weather today.", func(context.Context, struct{}) (string, error) { return "fine", nil })
	native := m.connect(m, "native")
	m.stopNative = m.run(func(ctx context.Context) error {
		return mesh.Serve(ctx, native, mesh.Service{ID: "weather", Version: "1.0.0", Handler: box, HeartbeatInterval: time.Second})
	})
}

// deposeLeader stops the registry that leads, and waits until another does.
func (m *lossyMesh) deposeLeader() {
	leader := func() int {
		return slices.IndexFunc(m.registries, func(r *registry.Registry) bool {
			ctx, cancel := context.WithTimeout(m.Context(), 5*time.Second)
			defer cancel()
			s, err := r.Status(ctx)
			return err == nil && s.Leading
		})
	}
	first := leader()
	if first < 0 {
		m.Fatal("no registry leads")
	}
	m.stopRegistries[first]()
	m.registries = slices.Delete(m.registries, first, first+1)
	eventually(m, limitFor(catalogLimit), "another registry leads", func() bool { return leader() >= 0 })
}

// waitForPhase waits until the expected catalog is returned in all three ways: to a client that follows it, to a client
// that loads it now, and by a request to the registry.
func (m *lossyMesh) waitForPhase(phase int) {
	m.Helper()
	want := strings.TrimSpace(wantCatalog[phase])
	var have [3]string
	began := time.Now()
	for {
		have = [3]string{m.followed(), m.loaded(), m.fromRegistry()}
		if have == [3]string{want, want, want} {
			break
		}
		if time.Since(began) > limitFor(catalogLimit) {
			m.Fatalf("phase %d, lost %v: want\n%s\n\nfollowed:\n%s\n\nloaded:\n%s\n\nfrom the registry:\n%s", phase, m.lossy.loss, want, have[0], have[1], have[2])
		}
		<-time.After(20 * time.Millisecond)
	}
	if took := time.Since(began); took > 5*time.Second {
		m.Logf("phase %d took %v", phase, took)
	}
}

func (m *lossyMesh) followed() string {
	return summarize(m.follower.All(), m.follower.Skills(), m.follower.Hosts())
}

func (m *lossyMesh) loaded() string {
	ctx, cancel := context.WithTimeout(m.Context(), 5*time.Second)
	defer cancel()
	c, err := mesh.LoadCatalog(ctx, m.nc, mesh.CatalogOptions{})
	if err != nil {
		return err.Error()
	}
	return summarize(c.All(), c.Skills(), c.Hosts())
}

func (m *lossyMesh) fromRegistry() string {
	a, err := m.nc.Request("ext.registry.rpc", []byte(`{"jsonrpc":"2.0","id":1,"method":"catalog"}`), 5*time.Second)
	if err != nil {
		return err.Error()
	}
	var answer struct {
		Result struct {
			Extensions []struct {
				ID    string         `json:"id"`
				Spec  *wire.Spec     `json:"spec"`
				State *wire.StateDoc `json:"state"`
			} `json:"extensions"`
			Hosts  map[string]wire.Host  `json:"hosts"`
			Skills map[string]wire.Skill `json:"skills"`
		} `json:"result"`
	}
	if err := json.Unmarshal(a.Data, &answer); err != nil {
		return err.Error()
	}
	var exts []mesh.Extension
	for _, e := range answer.Result.Extensions {
		x := mesh.Extension{ID: e.ID, Spec: e.Spec, State: e.State}
		if x.Spec == nil {
			x.Spec = &wire.Spec{}
		}
		if x.State == nil {
			x.State = &wire.StateDoc{}
		}
		exts = append(exts, x)
	}
	var skills []wire.Skill
	for _, s := range answer.Result.Skills {
		skills = append(skills, s)
	}
	var hosts []wire.Host
	for _, h := range answer.Result.Hosts {
		hosts = append(hosts, h)
	}
	return summarize(exts, skills, hosts)
}

// summarize returns the part of a catalog that TestMessageLoss compares. It does not distinguish instances that are lost
// from those that were shut down.
func summarize(exts []mesh.Extension, skills []wire.Skill, hosts []wire.Host) string {
	var lines []string
	for _, e := range exts {
		tools := []string{}
		for _, t := range e.Spec.Tools {
			tools = append(tools, t.Own)
		}
		state := e.State.State
		if n := len(e.State.Instances); n > 0 && (state == heartbeat.Lost || state == heartbeat.Shutdown) {
			state = "gone"
		}
		lines = append(lines, fmt.Sprintf("%s %s %d %v", e.ID, state, len(e.State.Instances), tools))
	}
	slices.Sort(lines)
	var more []string
	for _, h := range hosts {
		runs := slices.Clone(h.Extensions)
		slices.Sort(runs)
		line := fmt.Sprintf("host %s %s %v", h.Bridge, h.State, runs)
		for _, p := range h.Problems {
			line += "; " + p.ID + ": " + p.Message
		}
		more = append(more, line)
	}
	for _, s := range skills {
		more = append(more, fmt.Sprintf("skill %s %v", s.Name, s.Hosts))
	}
	slices.Sort(more)
	return strings.Join(append(lines, more...), "\n")
}

// extension writes a shell extension that reads the names of its tools from a file when it starts.
func (m *lossyMesh) extension(id, tools, more string) {
	m.Helper()
	dir := filepath.Join(m.dir, "ext", id)
	m.tools(id, tools)
	write(m, filepath.Join(dir, "run.sh"), `tools=$(cat tools)
while IFS= read -r line; do
	case $line in
	*'"initialize"'*) r='{"server_version":"1","tools":['$tools'],"hooks":[]}' ;;
	*'"id":'*) r='{}' ;;
	*) continue ;;
	esac
	id=${line#*'"id":'}
	printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "${id%%[,\}]*}" "$r"
done
`)
	write(m, filepath.Join(dir, "plugin.toml"), fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"say\"]\n[transport]\ntype = \"stdio\"\ncommand = \"sh\"\nargs = [\"run.sh\"]\n%s", id, more))
}

func (m *lossyMesh) tools(id, names string) {
	var tools []string
	for _, name := range strings.Fields(names) {
		tools = append(tools, fmt.Sprintf(`{"name":%q,"input_schema":{"type":"object"}}`, name))
	}
	write(m, filepath.Join(m.dir, "ext", id, "tools"), strings.Join(tools, ","))
}

func (m *lossyMesh) skill(name string) {
	write(m, filepath.Join(m.dir, "skills", name, "SKILL.md"), fmt.Sprintf("---\nname: %s\ndescription: How to %s.\n---\nDo it.\n", name, name))
}

// control sends a control request to the bridge, and repeats it until there is an answer.
func (m *lossyMesh) control(method string) []byte {
	m.Helper()
	for {
		a, err := m.nc.Request("ext.control.b1", fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":%q,"params":{}}`, method), 5*time.Second)
		if err == nil {
			return a.Data
		}
		m.Logf("%s: %v", method, err)
	}
}

// crash kills the child of an extension.
func (m *lossyMesh) crash(id string) {
	m.Helper()
	var status struct{ Result bridge.Status }
	var pid int
	eventually(m, limitFor(catalogLimit), "the bridge reports the process id", func() bool {
		if err := json.Unmarshal(m.control("status"), &status); err != nil {
			m.Fatal(err)
		}
		for _, i := range status.Result.Instances {
			if i.ID == id {
				pid = i.PID
			}
		}
		return pid != 0
	})
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		m.Fatal(err)
	}
}
