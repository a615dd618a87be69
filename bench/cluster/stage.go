package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/bench/internal/wait"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// The extensions on stage.
const (
	echoID   = "echo"   // a child of both bridges
	nativeID = "native" // a service of its own
	canaryID = "canary" // this program's, whose changes show how long one takes
)

const (
	streamName = "KV_ext_catalog"
	ours       = "bench-" // begins the names of this program's connections
	patience   = 90 * time.Second
)

// stage is everything that runs while the table is made. Programs are under their names: registry-a, registry-b,
// bridge-one, bridge-two, native.
type stage struct {
	self, bin, dir, logs string
	nodes                []*node
	programs             map[string]*proc.Process
	ops                  *nats.Conn // of questions; no calls go over it
	js                   jetstream.JetStream
	crowd                *crowd
	canary               *canary
	stop                 []func()
}

// newStage makes an empty stage. The programs' logs go to the directory logs, or with "" away with the stage.
func newStage(logs string) (*stage, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "extmesh-cluster-")
	if err != nil {
		return nil, err
	}
	if logs == "" {
		logs = dir
	} else if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, err
	}
	return &stage{self: self, dir: dir, logs: logs, bin: filepath.Join(dir, "bin"), programs: map[string]*proc.Process{}}, nil
}

// close ends everything that was started, programs before servers.
func (s *stage) close() {
	for i := len(s.stop) - 1; i >= 0; i-- {
		s.stop[i]()
	}
	var wg sync.WaitGroup
	for _, p := range s.programs {
		wg.Go(p.End) // ends within seconds
	}
	wg.Wait()
	for _, n := range s.nodes {
		if n.Process != nil {
			wg.Go(n.End) // ends within seconds
		}
	}
	wg.Wait()
	os.RemoveAll(s.dir)
}

// set builds and starts everything, and returns when all of it is well.
func (s *stage) set(ctx context.Context) error {
	if err := proc.Build(ctx, s.bin, "./cmd/registry", "./cmd/stdio-bridge"); err != nil {
		return err
	}
	if err := s.startNodes(); err != nil {
		return err
	}
	err := wait.Until(ctx, patience, "the cluster has a meta leader", func() error {
		_, err := s.metaLeader(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if s.ops, err = s.connect("ops", 0); err != nil {
		return err
	}
	s.stop = append(s.stop, s.ops.Close)
	if s.js, err = jetstream.New(s.ops); err != nil {
		return err
	}
	if err := s.manifest(); err != nil {
		return err
	}
	for _, name := range []string{"registry-a", "registry-b", "bridge-one", "bridge-two", "native"} {
		if err := s.launch(name); err != nil {
			return err
		}
	}
	if err := s.startCanary(); err != nil {
		return err
	}
	if err := s.gather(); err != nil {
		return err
	}
	return s.settled(ctx)
}

// launch starts one of the programs, for the first time or again. Each begins with a server of its own.
func (s *stage) launch(name string) (err error) {
	// One address is enough: a server tells of the others. Of several, a client takes one at random.
	env := []string{"NATS_URL=" + s.nodes[home[name]].url()}
	var p *proc.Process
	switch name {
	case "registry-a", "registry-b":
		p, err = proc.Start(s.logs, name, env, filepath.Join(s.bin, "registry"), "--name", name, "--log-level", "debug")
	case "bridge-one", "bridge-two":
		p, err = proc.Start(s.logs, name, env, filepath.Join(s.bin, "stdio-bridge"), "--name", name[len("bridge-"):],
			"--search-path", filepath.Join(s.dir, "extensions"), "--state-dir", filepath.Join(s.dir, name))
	case "native":
		p, err = proc.Start(s.logs, name, append(env, roleVar+"=native"), s.self)
	default:
		err = fmt.Errorf("no program is named %q", name)
	}
	if err == nil {
		s.programs[name] = p
	}
	return err
}

func (s *stage) manifest() error {
	dir := filepath.Join(s.dir, "extensions", echoID)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "plugin.toml"), fmt.Appendf(nil, `[plugin]
id = %q
version = "1.0.0"
[capabilities]
tools = ["echo"]
[transport]
type = "stdio"
command = %q
env = { %s = "child" }
`, echoID, s.self, roleVar), 0o644)
}

// connect connects this program. Losing a server is noticed as the programs notice it.
func (s *stage) connect(name string, first int, more ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(s.urls(first), append([]nats.Option{
		nats.Name(ours + name), nats.DontRandomize(), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond),
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2), nats.Timeout(2 * time.Second),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, more...)...)
}

// settled waits until everything is as it should be.
func (s *stage) settled(ctx context.Context) error {
	return wait.Until(ctx, patience, "the stage is whole", func() error {
		if _, err := s.metaLeader(ctx); err != nil {
			return err
		}
		if _, err := s.streamLeader(ctx); err != nil {
			return err
		}
		if _, _, err := s.registries(ctx); err != nil {
			return err
		}
		for i, f := range s.crowd.followers {
			if !s.whole(f.catalog) {
				return fmt.Errorf("follower %d of %d does not show everything as ready: %s", i+1, len(s.crowd.followers), summary(f.catalog))
			}
		}
		return nil
	})
}

// registries are the programs' names of the leading registry and of the standby.
func (s *stage) registries(ctx context.Context) (leader, standby string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	leader, err = s.leaseHolder(ctx)
	if err != nil {
		return "", "", err
	}
	standby = map[string]string{"registry-a": "registry-b", "registry-b": "registry-a"}[leader]
	m, err := s.ops.RequestWithContext(ctx, mesh.Prefix(mesh.DefaultPrefix).RegistryRPC(), []byte(`{"jsonrpc":"2.0","id":1,"method":"status"}`))
	if err != nil {
		return "", "", fmt.Errorf("asking a registry: %w", err)
	}
	var answer struct {
		Result struct {
			Replicas []struct {
				Name    string `json:"name"`
				Leading bool   `json:"leading"`
			} `json:"replicas"`
		} `json:"result"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return "", "", err
	}
	leading := 0
	for _, r := range answer.Result.Replicas {
		if r.Leading {
			leading++
		}
	}
	if n := len(answer.Result.Replicas); n != 2 || leading != 1 || standby == "" {
		return "", "", fmt.Errorf("%d registries are heard, %d of them leading, the lease is %q's", n, leading, leader)
	}
	return leader, standby, nil
}

func (s *stage) leaseHolder(ctx context.Context) (string, error) {
	kv, err := s.js.KeyValue(ctx, mesh.Prefix(mesh.DefaultPrefix).Bucket())
	if err != nil {
		return "", fmt.Errorf("the catalog's bucket: %w", err)
	}
	e, err := kv.Get(ctx, mesh.KeyLease)
	if err != nil {
		return "", fmt.Errorf("the lease: %w", err)
	}
	var holder struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(e.Value(), &holder); err != nil {
		return "", err
	}
	return holder.Name, nil
}

// childOf is the process of the extension's child of a bridge.
func (s *stage) childOf(ctx context.Context, bridge string) (pid int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m, err := s.ops.RequestWithContext(ctx, mesh.Prefix(mesh.DefaultPrefix).Control(bridge), []byte(`{"jsonrpc":"2.0","id":1,"method":"status"}`))
	if err != nil {
		return 0, fmt.Errorf("asking bridge %s: %w", bridge, err)
	}
	var answer struct {
		Result struct {
			Instances []struct {
				PID int `json:"pid"`
			} `json:"instances"`
		} `json:"result"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return 0, err
	}
	if i := answer.Result.Instances; len(i) != 1 || i[0].PID == 0 {
		return 0, errors.New("the bridge has no child")
	}
	return answer.Result.Instances[0].PID, nil
}

// recover starts again what a row that failed has left dead, and thaws what it has left stopped.
func (s *stage) recover(ctx context.Context) error {
	for _, n := range s.nodes {
		if err := s.revive(n.Process, func() error { return s.startNode(n) }); err != nil {
			return err
		}
	}
	for name, p := range s.programs {
		if err := s.revive(p, func() error { return s.launch(name) }); err != nil {
			return err
		}
	}
	return s.settled(ctx)
}

func (s *stage) revive(p *proc.Process, again func() error) error {
	select {
	case <-p.Done():
		return again()
	default:
		_ = proc.Thaw(p.PID()) // not stopped: no harm done
		return nil
	}
}

func (s *stage) heading() string {
	return fmt.Sprintf("%s/%s, %d processors, %s; %d NATS servers of nats-server's default raft settings, %d followers, %d calls a second of %s each; times in ms, rounded\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), clusterSize, followers, rate, busy)
}

// whole is what a catalog shows when nothing is wrong.
func (s *stage) whole(c *mesh.Catalog) bool {
	bridges := map[string]bool{}
	for _, i := range instances(c, echoID) {
		if i.State == heartbeat.Ready && (i.Breaker == nil || i.Breaker.State == heartbeat.BreakerClosed) {
			bridges[i.Bridge] = true
		}
	}
	e, _ := c.Get(echoID)
	n, _ := c.Get(nativeID)
	if e.State == nil || n.State == nil || len(e.Spec.Tools) != 1 || len(n.Spec.Tools) != 1 {
		return false
	}
	return len(bridges) == 2 && e.State.Available && n.State.Available && s.canary.shown(c)
}

func instances(c *mesh.Catalog, id string) []mesh.InstanceState {
	e, ok := c.Get(id)
	if !ok || e.State == nil {
		return nil
	}
	return e.State.Instances
}

// summary is what a catalog shows, for a message.
func summary(c *mesh.Catalog) string {
	text := ""
	for _, id := range []string{echoID, nativeID, canaryID} {
		for _, i := range instances(c, id) {
			text += fmt.Sprintf("%s%s %s (%s); ", id, prefixed("/", i.Bridge), i.State, i.Reason)
		}
	}
	return text
}

func prefixed(by, s string) string {
	if s == "" {
		return ""
	}
	return by + s
}
