//go:build interop

// The tests in this file need the packages of e2e/interop (npm ci there); .ci/run installs them and runs these
// with -tags interop.

package remote

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// everything starts server-everything on a port. stop ends it and waits until the port is free.
func everything(t *testing.T, port string) (stop func()) {
	t.Helper()
	script, err := filepath.Abs(filepath.Join("..", "..", "e2e", "interop", "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(script); err != nil {
		t.Fatalf("%v: run npm ci in e2e/interop first", err)
	}
	cmd := exec.Command("node", script, "streamableHttp")
	cmd.Env = append(os.Environ(), "PORT="+port)
	out := &safeBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := false
	stop = func() {
		if !done {
			done = true
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	t.Cleanup(stop)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
			conn.Close()
			return stop
		}
		if time.Now().After(deadline) {
			t.Fatalf("server-everything does not listen:\n%s", out)
		}
	}
}

func TestServerEverything(t *testing.T) {
	port := strconv.Itoa(freeport.Port(t)) // the server is started on it twice
	stop := everything(t, port)
	url := "http://127.0.0.1:" + port + "/mcp"
	if err := Probe(soon(t), Config{URL: url}); err != nil {
		t.Errorf("Probe: %v", err)
	}
	var notes notifications
	c := start(t, Config{URL: url, Dialect: manifest.Auto, OnNotification: notes.add})
	handshake(t, c)
	c.mu.Lock()
	before := c.negotiated.session
	c.mu.Unlock()
	if before == nil || before.id == "" {
		t.Fatalf("session %+v", before)
	}

	if list, err := c.Call(soon(t), "tools/list", nil); err != nil || !strings.Contains(string(list), `"get-tiny-image"`) {
		t.Errorf("tools/list: %.200s, %v", list, err)
	}
	if got, err := c.Call(soon(t), "ping", nil); err != nil || string(got) != "{}" {
		t.Errorf("ping: %s, %v", got, err)
	}
	if text := echo(t, c, `é <&> 9007199254740993`); text != `Echo: é <&> 9007199254740993` {
		t.Errorf("echo: %q", text)
	}
	got, err := c.Call(soon(t), "tools/call", json.RawMessage(`{"name":"trigger-long-running-operation","arguments":{"duration":1,"steps":4},"_meta":{"progressToken":77}}`))
	if err != nil || !strings.Contains(string(got), "ompleted") {
		t.Errorf("long operation: %s, %v", got, err)
	}
	if n := strings.Count(fmt.Sprint(notes.list()), `"progressToken":77`); n < 4 {
		t.Errorf("%d times progress: %q", n, notes.list())
	}
	if _, err := c.Call(soon(t), "no/such", nil); rpc.AsError(err).Code != rpc.CodeMethodNotFound {
		t.Errorf("no/such: %v", err)
	}

	stop()
	_, err = c.Call(soon(t), "ping", nil)
	if e := rpc.AsError(err); e == nil || e.Code != rpc.CodeUnavailable && e.Code != rpc.CodeExited {
		t.Errorf("while it is away: %v", err)
	}
	everything(t, port)
	if text := echo(t, c, "back"); text != "Echo: back" {
		t.Errorf("after the restart: %q", text)
	}
	eventually(t, "a notification after the restart", func() bool { return notes.has(listChanged) })
	c.mu.Lock()
	if c.negotiated.session == before {
		t.Error("the session is the old one")
	}
	c.mu.Unlock()
	if c.end(t); !strings.Contains(c.logs.String(), "opened again") {
		t.Errorf("log:\n%s", c.logs)
	}
}

func echo(t *testing.T, c *runningConn, message string) string {
	t.Helper()
	params, err := json.Marshal(map[string]any{"name": "echo", "arguments": map[string]string{"message": message}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Call(soon(t), "tools/call", params)
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Content []struct{ Text string } }
	if err := json.Unmarshal(got, &r); err != nil || len(r.Content) != 1 {
		t.Fatalf("%s: %v", got, err)
	}
	return r.Content[0].Text
}
