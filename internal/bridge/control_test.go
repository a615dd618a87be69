package bridge_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
)

// request sends a request on nc and returns the response, or the text of the error.
func request(nc *nats.Conn, subject, method, params string) string {
	m, err := nc.Request(subject, []byte(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`), time.Minute)
	if err != nil {
		return err.Error()
	}
	return string(m.Data)
}

// TestRestartIsReported: an instance that takes long to stop is restarting as soon as the restart is requested, and a
// drained one is no longer draining.
func TestRestartIsReported(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("slow", `"here"`, "")
	script, goOn := filepath.Join(h.dir, "ext", "slow", "say.sh"), filepath.Join(h.dir, "go-on")
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	h.write(script, string(text)+"while [ ! -e "+goOn+" ]; do sleep 0.01; done\n", 0o755)
	h.run(func(c *bridge.Config) { c.Settings.Supervision.ShutdownGrace = time.Minute })
	other := h.other()
	for _, before := range []string{"", "drain"} {
		h.answers("slow", `"here"`)
		if before != "" {
			h.control(before, `{"id":"slow"}`)
		}
		if got := request(other, "ext.control.b1", "restart", `{"id":"slow"}`); !strings.Contains(got, "instances") {
			t.Fatalf("restart: %s", got)
		}
		if got := h.control("status", `{"id":"slow"}`); !strings.Contains(got, `"state":"restarting","reason":"restart requested"`) {
			t.Errorf("after %q, and a restart: %s", before, got)
		}
		h.waitGone("slow")
		if got := h.control("status", `{"id":"slow"}`); !strings.Contains(got, `"state":"restarting"`) {
			t.Errorf("after %q, after it stopped serving: %s", before, got)
		}
		h.write(goOn, "", 0o644)
		h.answers("slow", `"here"`)
		if err := os.Remove(goOn); err != nil {
			t.Fatal(err)
		}
	}
	h.write(goOn, "", 0o644)
}

// TestDrainedTakesNoCalls: after the response to a drain, a call over another connection finds no responder.
func TestDrainedTakesNoCalls(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("one", `"here"`, "")
	h.run(nil)
	other := h.other()
	for range 10 {
		h.answers("one", `"here"`)
		asked := time.Now()
		if got := request(other, "ext.control.b1", "drain", `{"id":"one"}`); !strings.Contains(got, "instances") {
			t.Fatalf("drain: %s", got)
		}
		inTime := time.Since(asked) < time.Second // the bridge waits for NATS no longer than that
		if got := request(other, "ext.one.rpc", "tools/say", "{}"); inTime && got != nats.ErrNoResponders.Error() {
			t.Fatalf("after a drain: %s", got)
		}
		h.control("restart", `{"id":"one"}`)
	}
}

// TestReadyAnswersCalls: a call after an instance was reported as ready is answered.
func TestReadyAnswersCalls(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("one", `"here"`, "")
	other := h.other()
	runs := 0
	h.run(nil)
	for runs < 10 {
		runs++
		eventually(t, "it is ready", func() bool { return strings.Count(h.log.String(), "extension ready") == runs }, nil)
		if got := request(other, "ext.one.rpc", "tools/say", "{}"); !strings.Contains(got, "here") {
			t.Fatalf("run %d: %s", runs, got)
		}
		h.control("restart", `{"id":"one"}`)
	}
}

// TestReady: a bridge is ready when all extensions are ready or have failed, and not before it has read its manifests.
func TestReady(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("late", `"here"`, "")
	h.extension("broken", `"here"`, "")
	h.write(filepath.Join(h.dir, "ext", "broken", "say.sh"), "#!/bin/sh\nexit 3\n", 0o755)
	script, goOn := filepath.Join(h.dir, "ext", "late", "say.sh"), filepath.Join(h.dir, "go-on")
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	h.write(script, strings.Replace(string(text), "\n", "\nwhile [ ! -e "+goOn+" ]; do sleep 0.01; done\n", 1), 0o755)
	settings := config.Default()
	settings.SearchPaths = []string{filepath.Join(h.dir, "ext")}
	settings.Supervision.MaxRestarts = 0
	awaited, there := make(chan struct{}), make(chan struct{})
	b := bridge.New(h.nc, bridge.Config{Name: "b1", Settings: settings, StateDir: t.TempDir(), Watchdog: func() { close(awaited); <-there }})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }() // ends with stop
	says := func(want string) func() bool {
		return func() bool { err := b.Ready(); return err != nil && strings.Contains(err.Error(), want) }
	}
	<-awaited
	if !says("the manifests have not been read yet")() {
		t.Errorf("before it has a plan: %v", b.Ready())
	}
	close(there)
	eventually(t, "an extension is starting", says("some extensions are neither ready nor failed yet"), func() string { return fmt.Sprint(b.Ready()) })
	h.write(goOn, "", 0o644)
	eventually(t, "it is ready", func() bool { return b.Ready() == nil }, func() string { return fmt.Sprint(b.Ready()) })
	h.control("restart", `{"id":"late"}`)
	if err := b.Ready(); err != nil {
		t.Errorf("while an extension restarts: %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !says("stopping")() {
		t.Errorf("after the stop: %v", b.Ready())
	}
}

// TestControlRequestsInOrder: requests that a client sends without waiting for responses are executed in order.
func TestControlRequestsInOrder(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("one", `"here"`, "")
	h.run(nil)
	inbox := h.nc.NewInbox()
	answers, err := h.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		h.answers("one", `"here"`)
		for _, verb := range []string{"drain", "restart", "drain", "restart"} {
			if err := h.nc.PublishRequest("ext.control.b1", inbox, []byte(`{"jsonrpc":"2.0","id":1,"method":"`+verb+`","params":{"id":"one"}}`)); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			if m, err := answers.NextMsg(time.Minute); err != nil || !strings.Contains(string(m.Data), "instances") {
				t.Fatalf("%v, %v", m, err)
			}
		}
	}
	h.answers("one", `"here"`)
}
