package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// mostMemory is the limit for the memory of a bridge, whatever callers and children send.
const mostMemory = 512 << 20

// plain returns stdio-bridge or registry built without the race detector, which needs additional memory.
func plain(t *testing.T, name string) string {
	t.Helper()
	if !raceEnabled {
		return program(t, name)
	}
	path := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", path, "../cmd/"+name).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// writeShell writes a shell extension with the tool act; after the handshake it runs the shell command act.
func writeShell(t *testing.T, dir, id, act string) {
	t.Helper()
	script := `#!/bin/sh
IFS= read -r line
printf '{"jsonrpc":"2.0","id":1,"result":{"server_version":"1","tools":[{"name":"act","input_schema":{"type":"object"}}],"hooks":[]}}\n'
` + act + "\n"
	write(t, filepath.Join(dir, id, "run.sh"), script)
	if err := os.Chmod(filepath.Join(dir, id, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, id, "plugin.toml"), fmt.Sprintf(`
[plugin]
id = %q
version = "1.0.0"
[capabilities]
tools = ["act"]
[transport]
type = "stdio"
command = "./run.sh"
`, id))
}

// readyToAct waits until these extensions answer requests.
func readyToAct(t *testing.T, nc *nats.Conn, ids ...string) {
	t.Helper()
	for _, id := range ids {
		eventually(t, time.Minute, id+" is ready", func() bool {
			_, err := nc.Request("ext."+id+".rpc", []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize"}`), time.Second)
			return err == nil
		})
	}
}

// TestMemoryOfRequests sends 512 requests of 4 MB to two extensions that do not answer, one of which does not even
// read: the bridge refuses requests that exceed its memory limit, and another extension is not affected.
func TestMemoryOfRequests(t *testing.T) {
	slowOnly(t, "it measures memory, with 2 GB of requests")
	t.Parallel()
	url, _ := startNATS(t, "max_payload: 8388608", "max_pending: 1GB", "write_deadline: 60s")
	dir := writeWho(t, "one")
	writeShell(t, dir, "reads", "exec 3>&1; exec cat >/dev/null")
	writeShell(t, dir, "sleeps", "exec sleep 600")
	bridge := start(t, []string{"NATS_URL=" + url}, plain(t, "stdio-bridge"), "--name", "one", "--search-path", dir)
	nc := connect(t, url)
	readyToAct(t, nc, "reads", "sleeps", "who")
	idle := peakMemory(t, bridge)

	body := []byte(`{"jsonrpc":"2.0","id":"a","method":"tools/act","params":{"x":"` + strings.Repeat("x", 4_000_000) + `"}}`)
	inbox := nc.NewInbox() // with two tokens only, so that no limit per caller applies
	answers := make(chan *nats.Msg, 1024)
	if _, err := nc.ChanSubscribe(inbox, answers); err != nil {
		t.Fatal(err)
	}
	for n := range 512 {
		m := &nats.Msg{Subject: "ext." + []string{"reads", "sleeps"}[n%2] + ".rpc", Reply: inbox, Data: body,
			Header: nats.Header{wire.HeaderTimeout: {"600000"}}}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		if err := nc.FlushTimeout(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	client := mesh.NewClient(nc, mesh.ClientOptions{})
	if _, err := client.Call(t.Context(), "who/who", nil); err != nil {
		t.Errorf("a call to another extension: %v", err)
	}
	refused := 0
	for len(answers) > 0 {
		m := <-answers
		if text := string(m.Data); !strings.Contains(text, `"kind":"overloaded","ran":"no"`) {
			t.Fatalf("answer %d: %.300s %v", refused, text, m.Header)
		}
		refused++
	}
	peak := peakMemory(t, bridge)
	t.Logf("%d of 512 calls refused; peak memory %d MiB, before the calls %d MiB", refused, peak>>20, idle>>20)
	if peak > mostMemory || refused == 0 {
		t.Errorf("%d of 512 calls were refused, and the bridge used %d MiB", refused, peak>>20)
	}
}

// TestMemoryOfLines lets ten children write a line that never ends, and ten more stop in the middle of a long one. Their
// calls fail; calls to another extension do not.
func TestMemoryOfLines(t *testing.T) {
	slowOnly(t, "it measures memory, with more than 1 GB of output")
	t.Parallel()
	url, _ := startNATS(t)
	dir := writeWho(t, "one")
	var flooding, stopping []string
	for n := range 10 {
		id := fmt.Sprintf("flood%d", n)
		writeShell(t, dir, id, `IFS= read -r line; exec tr '\0' x </dev/zero`)
		flooding = append(flooding, id)
		id = fmt.Sprintf("stop%d", n)
		writeShell(t, dir, id, `IFS= read -r line; head -c 60000000 /dev/zero | tr '\0' x; exec sleep 600`)
		stopping = append(stopping, id)
	}
	bridge := start(t, []string{"NATS_URL=" + url}, plain(t, "stdio-bridge"), "--name", "one", "--search-path", dir)
	nc := connect(t, url)
	readyToAct(t, nc, append(append([]string{"who"}, flooding...), stopping...)...)

	ctx, stop := context.WithCancel(t.Context())
	var healthy, offenders sync.WaitGroup
	defer healthy.Wait()
	defer stop()
	client := mesh.NewClient(nc, mesh.ClientOptions{})
	healthy.Go(func() { // ends with stop
		for ctx.Err() == nil {
			if _, err := client.Call(ctx, "who/who", nil); err != nil && ctx.Err() == nil {
				t.Errorf("a call to another extension: %v", err)
			}
		}
	})
	for _, id := range stopping {
		offenders.Go(func() { // ends with its call
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			if _, err := client.Call(ctx, id+"/act", nil); !errors.Is(err, rpc.CodeTimeout) {
				t.Errorf("%s: %v", id, err)
			}
		})
	}
	for _, id := range flooding {
		offenders.Go(func() { // ends with its call
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			if _, err := client.Call(ctx, id+"/act", nil); !errors.Is(err, rpc.CodeExited) || !strings.Contains(err.Error(), "does not end") {
				t.Errorf("%s: %v", id, err)
			}
		})
	}
	offenders.Wait()
	peak := peakMemory(t, bridge)
	t.Logf("peak memory %d MiB", peak>>20)
	if peak > mostMemory {
		t.Errorf("the bridge used %d MiB", peak>>20)
	}
}
