package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// countingChild is a shell extension. Its tool act appends a line to a file and answers with the error -32601. From version
// 2.0.0 on there is another tool, new.
const countingChild = `#!/bin/sh
while IFS= read -r line; do
	case $line in *'"id":'*) id=${line#*'"id":'} id=${id%%[,\}]*} ;; *) id= ;; esac
	case $line in
	*'"method":"initialize"'*) r='"result":{INIT,"server_version":"VERSION","tools":[TOOLS],"hooks":[]}' ;;
	*'"method":"tools/list"'*) r='"result":{"tools":[TOOLS]}' ;;
	*'"method":"tools/act"'* | *'"name":"act"'*)
		echo ran >>RUNS
		r='"error":{"code":-32601,"message":"its own","data":{"kind":"method_not_found","ran":"no"}}' ;;
	*'"method":"tools/new"'* | *'"name":"new"'*) r='"result":{"content":[]}' ;;
	*'"method":"ping"'*) r='"result":{}' ;;
	*) continue ;;
	esac
	[ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$r"
done
`

// TestMixedVersionsOfChildren runs two versions of an extension on two bridges, with the shipped permissions. A tool that
// answers -32601 runs once, whatever the error contains. Calls of a tool that only the newer version has always succeed, and
// calls of a tool that neither version has always fail.
func TestMixedVersionsOfChildren(t *testing.T) {
	t.Parallel()
	url, _ := startShipped(t, "one.conf", nil)
	start(t, []string{"NATS_URL=" + as(url, "registry")}, program(t, "registry"), "--inbox-prefix", "_INBOX.registry")
	runs := filepath.Join(t.TempDir(), "runs")
	for n, version := range []string{"1.0.0", "2.0.0"} {
		name := fmt.Sprintf("bridge-%d", n)
		tools := `{"name":"act","inputSchema":{"type":"object"}}`
		if version == "2.0.0" {
			tools += `,{"name":"new","inputSchema":{"type":"object"}}`
		}
		root := filepath.Join(t.TempDir(), "extensions")
		for id, init := range map[string]string{"native": `"native":true`, "server": `"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}`} {
			script := filepath.Join(root, id, "run.sh")
			write(t, script, strings.NewReplacer("INIT", init, "VERSION", version, "TOOLS", tools, "RUNS", runs).Replace(countingChild))
			write(t, filepath.Join(root, id, "plugin.toml"), fmt.Sprintf("[plugin]\nid = %q\nversion = %q\n[capabilities]\ntools = [\"act\", \"new\"]\n[transport]\ntype = \"stdio\"\ncommand = \"/bin/sh\"\nargs = [%q]\n", id, version, script))
		}
		start(t, []string{"NATS_URL=" + as(url, name)}, program(t, "stdio-bridge"), "--name", name, "--inbox-prefix", "_INBOX."+name,
			"--search-path", root, "--state-dir", t.TempDir())
	}
	client, catalog := caller(t, as(url, "agent"), nats.CustomInboxPrefix("_INBOX.agent"))
	for _, id := range []string{"native", "server"} {
		eventually(t, time.Minute, "both versions of "+id+" are ready, and the catalog shows the newer one", func() bool {
			_, _, known := catalog.Tool("ext_" + id + "_new")
			return known && instances(catalog, id, "1.0.0") == 1 && instances(catalog, id, "2.0.0") == 1
		})
	}
	bare := mesh.NewClient(connectAs(t, as(url, "agent"), "_INBOX.agent"), mesh.ClientOptions{})
	made := 0
	for _, id := range []string{"native", "server"} {
		for range 20 { // NATS distributes them over both
			for _, c := range []*mesh.Client{client, bare} {
				_, err := c.Call(t.Context(), id+"/act", nil)
				if e := rpc.AsError(err); e == nil || e.Code != rpc.CodeMethodNotFound || e.Message != "its own" {
					t.Errorf("%s/act: %v", id, err)
				}
				made++
			}
			if _, err := client.Call(t.Context(), "ext_"+id+"_new", nil); err != nil {
				t.Errorf("%s/new: %v", id, err)
			}
			if _, err := client.CallExt(t.Context(), id, "tools/none", nil); !errors.Is(err, rpc.CodeMethodNotFound) || !strings.Contains(err.Error(), "no tool named") {
				t.Errorf("%s/none: %v", id, err)
			}
		}
	}
	text, err := os.ReadFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	if ran := strings.Count(string(text), "ran\n"); ran != made {
		t.Errorf("%d calls were run %d times", made, ran)
	}
}

// connectAs connects as a user, with its inbox prefix, until the end of the test.
func connectAs(t *testing.T, url, inbox string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.Timeout(time.Minute), nats.CustomInboxPrefix(inbox))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}
