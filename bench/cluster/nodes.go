package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/bench/internal/wait"
)

// node is one NATS server of the cluster.
type node struct {
	name                string
	client, route, http int // ports
	*proc.Process
}

const clusterSize = 3

func (n *node) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", n.client) }

// startNodes starts the cluster. The ports are chosen beforehand: a server that comes back is where it was.
func (s *stage) startNodes() error {
	ports, err := freePorts(3 * clusterSize)
	if err != nil {
		return err
	}
	for i := range clusterSize {
		s.nodes = append(s.nodes, &node{name: fmt.Sprintf("n%d", i+1), client: ports[3*i], route: ports[3*i+1], http: ports[3*i+2]})
	}
	for _, n := range s.nodes {
		if err := s.startNode(n); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) startNode(n *node) error {
	var routes []string
	for _, other := range s.nodes {
		routes = append(routes, fmt.Sprintf("\"nats://127.0.0.1:%d\"", other.route))
	}
	config := filepath.Join(s.dir, n.name+".conf")
	text := fmt.Sprintf(`server_name: %s
listen: "127.0.0.1:%d"
http: "127.0.0.1:%d"
jetstream { store_dir: %q }
cluster { name: bench, listen: "127.0.0.1:%d", routes: [%s] }
# as docs/operations.md advises
ping_interval: "10s"
ping_max: 2
max_payload: 4MB
write_deadline: "5s"
`, n.name, n.client, n.http, filepath.Join(s.dir, n.name), n.route, strings.Join(routes, ", "))
	err := os.WriteFile(config, []byte(text), 0o600)
	if err == nil {
		n.Process, err = proc.Start(s.logs, n.name, []string{roleVar + "=natsd", "NATS_CONFIG=" + config}, s.self)
	}
	return err
}

// freePorts finds ports that nobody listens on.
func freePorts(n int) (ports []int, err error) {
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		held = append(held, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// urls are the servers' addresses, first's first, as clients should have them.
func (s *stage) urls(first int) string {
	var all []string
	for i := range s.nodes {
		all = append(all, s.nodes[(first+i)%len(s.nodes)].url())
	}
	return strings.Join(all, ",")
}

func (s *stage) node(name string) (*node, error) {
	i := slices.IndexFunc(s.nodes, func(n *node) bool { return n.name == name })
	if i < 0 {
		return nil, fmt.Errorf("no server is named %q", name)
	}
	return s.nodes[i], nil
}

// get asks a server's monitoring port.
func (n *node) get(ctx context.Context, path string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://127.0.0.1:%d/%s", n.http, path), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(v)
}

// metaLeader is the server that leads JetStream's meta group, as long as all agree.
func (s *stage) metaLeader(ctx context.Context) (string, error) {
	leader := ""
	for _, n := range s.nodes {
		var js struct {
			Meta struct {
				Leader string `json:"leader"`
				Size   int    `json:"cluster_size"`
			} `json:"meta_cluster"`
		}
		if err := n.get(ctx, "jsz", &js); err != nil {
			return "", err
		}
		switch m := js.Meta; {
		case m.Leader == "" || m.Size != clusterSize:
			return "", fmt.Errorf("%s has no meta leader, or not of all servers", n.name)
		case leader != "" && leader != m.Leader:
			return "", fmt.Errorf("the servers do not agree on a meta leader")
		default:
			leader = m.Leader
		}
	}
	return leader, nil
}

// streamLeader is the server that leads the catalog's stream, as long as the others have all of it.
func (s *stage) streamLeader(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := s.js.Stream(ctx, streamName)
	if err != nil {
		return "", err
	}
	info := stream.CachedInfo()
	if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != clusterSize-1 {
		return "", fmt.Errorf("the catalog's stream does not have its %d replicas", clusterSize)
	}
	for _, r := range info.Cluster.Replicas {
		if !r.Current || r.Offline {
			return "", fmt.Errorf("the catalog's replica on %s is not current", r.Name)
		}
	}
	return info.Cluster.Leader, nil
}

// apart makes two servers of the stream's leader and the meta leader, so that a row is about one of them.
func (s *stage) apart(ctx context.Context) (stream, meta string, err error) {
	for range 20 {
		if meta, err = s.metaLeader(ctx); err != nil {
			return "", "", err
		}
		if stream, err = s.streamLeader(ctx); err != nil {
			return "", "", err
		}
		if stream != meta {
			return stream, meta, nil
		}
		if _, err = s.ops.Request("$JS.API.STREAM.LEADER.STEPDOWN."+streamName, nil, 5*time.Second); err != nil {
			return "", "", fmt.Errorf("asking the stream's leader to step down: %w", err)
		}
		if err = s.settled(ctx); err != nil {
			return "", "", err
		}
	}
	return "", "", fmt.Errorf("the stream's leader is the meta leader, time and again")
}

// avoid moves a connection of ours away from a server that is about to suffer.
func avoid(ctx context.Context, nc *nats.Conn, name string) error {
	for range 50 {
		if at := nc.ConnectedServerName(); nc.IsConnected() && at != name && at != "" {
			return nc.FlushTimeout(2 * time.Second)
		}
		if err := nc.ForceReconnect(); err != nil {
			return err
		}
		if !wait.For(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("cannot get away from %s", name)
}

// home is the server that a program begins with.
var home = map[string]int{"registry-a": 0, "registry-b": 1, "bridge-one": 1, "bridge-two": 2, "native": 2}

// at is the server that a program is connected to, by the last word of its log on that.
func (s *stage) at(name string) (*node, error) {
	said := s.programs[name].Said(0, `"server":"`)
	if len(said) == 0 {
		return nil, fmt.Errorf("%s does not say where it is connected", name)
	}
	var line struct {
		Server string `json:"server"`
	}
	if err := json.Unmarshal([]byte(said[len(said)-1]), &line); err != nil {
		return nil, fmt.Errorf("the log of %s: %w", name, err)
	}
	i := slices.IndexFunc(s.nodes, func(n *node) bool { return n.url() == line.Server })
	if i < 0 {
		return nil, fmt.Errorf("%s is connected to %q, which is none of ours", name, line.Server)
	}
	return s.nodes[i], nil
}

// goHome starts the programs again that have moved away from where they begin, so that every server has its share.
func (s *stage) goHome(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(home)) {
		n, err := s.at(name)
		if err != nil {
			return err
		}
		if n == s.nodes[home[name]] {
			continue
		}
		s.programs[name].End()
		if err := s.launch(name); err != nil {
			return err
		}
		if err := s.settled(ctx); err != nil {
			return err
		}
	}
	return nil
}

// guests are the programs that are connected to a server.
func (s *stage) guests(n *node) (names []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(home)) {
		at, err := s.at(name)
		if err != nil {
			return nil, err
		}
		if at == n {
			names = append(names, name)
		}
	}
	return names, nil
}
