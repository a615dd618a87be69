package e2e

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestBridgeRestart kills a bridge, breaks its extension, and starts the bridge again under the same name: the catalog
// shows the current state of the instance and the host, not the former one. A running instance cannot be removed with
// extctl, a lost one can.
func TestBridgeRestart(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	dir := writeWho(t, "one")
	bridge := func() *process {
		return start(t, env, program(t, "stdio-bridge"), "--name", "one", "--search-path", dir)
	}
	nc := connect(t, url)
	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { catalog.Run(ctx) }) // ends with ctx
	defer wg.Wait()
	defer cancel()
	shows := func(instances, host string) func() bool {
		return func() bool {
			e, _ := catalog.Get("who")
			var states []string
			if e.State != nil {
				for _, i := range e.State.Instances {
					states = append(states, string(i.State))
				}
			}
			hosts := catalog.Hosts()
			return strings.Join(states, " ") == instances && len(hosts) == 1 && string(hosts[0].State) == host
		}
	}
	defer func() {
		if t.Failed() { // shows whether the catalog is wrong, or only its follower
			e, _ := catalog.Get("who")
			t.Logf("followed: %+v, hosts %+v", e.State, catalog.Hosts())
			for _, verb := range [][]string{{"show", "who", "--json"}, {"hosts", "--json"}, {"show", "registry", "--json"}} {
				out, stderr, _ := extctl(t, url, append(verb, "--timeout", "5s")...)
				t.Logf("extctl %s: %s%s", strings.Join(verb, " "), out, stderr)
			}
		}
	}()
	first := bridge()
	eventually(t, time.Minute, "it is up", shows("ready", "ready"))
	if _, stderr, code := extctl(t, url, "forget", "who"); code != 16 || !strings.Contains(stderr, "its instance at one is ready") {
		t.Errorf("extctl forget: exit %d, %s", code, stderr)
	}
	first.cmd.Process.Kill()
	eventually(t, time.Minute, "it is lost", shows("lost", "lost"))
	if out, stderr, code := extctl(t, url, "hosts"); code != 0 || !regexp.MustCompile(`(?m)^one +\S+ +lost \d+s ago `).MatchString(out) {
		t.Errorf("extctl hosts: exit %d, %s%s", code, out, stderr)
	}
	if out, stderr, code := extctl(t, url, "status"); code != 10 || !strings.Contains(out, "\nerror  the bridge one on the host ") || !strings.Contains(out, "\nerror  who is lost on one") {
		t.Errorf("extctl status: exit %d, %s%s", code, out, stderr)
	}
	write(t, filepath.Join(dir, "who", "plugin.toml"), `
[plugin]
id = "who"
version = "1.0.0"
[capabilities]
tools = ["who"]
[requires]
bins = ["a-missing-program"]
[transport]
type = "stdio"
command = "./who.sh"
`)
	again := bridge()
	eventually(t, time.Minute, "it is gated, and nothing else", shows("gated", "ready"))
	again.cmd.Process.Kill()
	eventually(t, time.Minute, "it is lost again", shows("lost", "lost"))
	if _, stderr, code := extctl(t, url, "forget", "who"); code != 0 {
		t.Errorf("extctl forget: exit %d, %s", code, stderr)
	}
	if _, ok := catalog.Get("who"); ok {
		eventually(t, time.Minute, "it is removed from the catalog", func() bool { _, ok := catalog.Get("who"); return !ok })
	}
}
