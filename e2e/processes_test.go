package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// who is a shell extension with a tool that returns the name of the bridge that runs it. It answers one call at a time.
const who = `#!/bin/sh
while IFS= read -r line; do
	case $line in *'"id":'*) id=${line#*'"id":'} id=${id%%[,\}]*} ;; *) id= ;; esac
	case $line in
	*'"initialize"'*) r='{"server_version":"1","tools":[{"name":"who","input_schema":{"type":"object"}}],"hooks":[]}' ;;
	*'"tools/who"'*) r="\"$BRIDGE\"" ;;
	*) r='{}' ;;
	esac
	[ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done
`

func writeWho(t *testing.T, bridge string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "extensions")
	write(t, filepath.Join(dir, "who", "who.sh"), who)
	if err := os.Chmod(filepath.Join(dir, "who", "who.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "who", "plugin.toml"), fmt.Sprintf(`
[plugin]
id = "who"
version = "1.0.0"
[capabilities]
tools = ["who"]
[transport]
type = "stdio"
command = "./who.sh"
env = { BRIDGE = %q }
`, bridge))
	return dir
}

// TestThreePrograms runs a registry and two bridges with the same extension as separate processes. Calls are distributed
// over both. When one bridge is killed during calls, no call hangs, and further calls succeed.
func TestThreePrograms(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"), "--log-level", "debug")
	bridges := map[string]*process{}
	for _, name := range []string{"one", "two"} {
		bridges[name] = start(t, env, program(t, "stdio-bridge"), "--name", name, "--search-path", writeWho(t, name))
	}
	nc := connect(t, url)
	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { catalog.Run(ctx) }) // ends with ctx
	defer wg.Wait()
	defer cancel()
	ready := func(n int) func() bool {
		return func() bool {
			e, _ := catalog.Get("who")
			count := 0
			if e.State != nil {
				for _, i := range e.State.Instances {
					if i.State == "ready" {
						count++
					}
				}
			}
			return count == n && len(e.Spec.Tools) == 1
		}
	}
	eventually(t, time.Minute, "both instances are ready", ready(2))

	client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog})
	var mu sync.Mutex
	answers := map[string]int{}
	var calls sync.WaitGroup
	for range 10 {
		calls.Go(func() {
			for range 20 {
				got, err := client.Call(ctx, "ext_who_who", nil)
				if err != nil {
					t.Errorf("call: %v", err)
				}
				mu.Lock()
				answers[string(got)]++
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	if answers[`"one"`] < 40 || answers[`"two"`] < 40 {
		t.Errorf("200 calls were answered by: %v", answers)
	}

	var good, failed atomic.Int64
	load, stop := context.WithCancel(ctx)
	for range 16 {
		calls.Go(func() {
			for load.Err() == nil {
				switch _, err := client.Call(ctx, "ext_who_who", nil); {
				case err == nil:
					good.Add(1)
				case errors.Is(err, rpc.CodeExited): // not CodeTimeout: it ends with the silence, not at its deadline
					failed.Add(1)
				default:
					t.Errorf("a call failed in an unexpected way: %v", err)
				}
				sleep(load, 10*time.Millisecond)
			}
		})
	}
	eventually(t, time.Minute, "calls are answered", func() bool { return good.Load() > 50 })
	// A bridge that has answered a ping is lost as soon as it does not answer another; before that, when its heartbeats are late.
	eventually(t, time.Minute, "both bridges answer the registry's pings", func() bool {
		hosts := catalog.Hosts()
		return len(hosts) == 2 && !slices.ContainsFunc(hosts, func(h mesh.Host) bool { return h.State != heartbeat.Ready })
	})
	bridges["one"].cmd.Process.Kill()
	before := good.Load()
	eventually(t, time.Minute, "calls are still answered", func() bool { return good.Load() > before+50 })
	eventually(t, time.Minute, "the catalog shows one instance", ready(1))
	stop()
	calls.Wait()
	if failed.Load() > 16 {
		t.Errorf("%d calls failed when a bridge was killed that had at most 16 of them", failed.Load())
	}

	out, stderr, code := extctl(t, url, "list", "--json")
	var list struct {
		Extensions []struct {
			ID        string
			State     string
			Available bool
			Tools     int
		}
	}
	if code != 0 || json.Unmarshal([]byte(out), &list) != nil || len(list.Extensions) != 1 || !list.Extensions[0].Available {
		t.Errorf("extctl list: exit %d, %s%s", code, out, stderr)
	}
	if out, stderr, code = extctl(t, url, "call", "ext_who_who"); code != 0 || strings.TrimSpace(out) != `"two"` {
		t.Errorf("extctl call: exit %d, %s%s", code, out, stderr)
	}
	bridges["two"].stop(t, 5*time.Second)
	eventually(t, time.Minute, "the catalog shows no instance", ready(0))
}
