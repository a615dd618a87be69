package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// unstoppable is a child that ignores the end of its input and all signals that can be ignored.
func unstoppable(k *testChild) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	k.serve(map[string]func(message){"act": func(message) { k.notify("got", "{}") }})
	k.notify("shutdown", "{}")
	hang()
}

// stops are the states in which an extension can be when its bridge stops.
var stops = []fault{
	{
		mode: "stop-spawning", child: func(k *testChild) {},
		set: func(s *config.Supervision) {
			s.MaxRestarts, s.BaseBackoff, s.MaxBackoff = 1000, time.Millisecond, time.Millisecond
		},
		test: func(h *host) {
			h.eventually("it is spawned again and again", func() bool { return h.status().LastExit != nil })
		},
	},
	{
		mode: "stop-handshaking",
		child: func(k *testChild) {
			signal.Ignore(syscall.SIGTERM)
			k.next()
			k.notify("got", "{}")
			k.next() // the end of the input
			k.notify("shutdown", "{}")
			hang()
		},
		test: func(h *host) { h.eventually("it has initialize", func() bool { return h.events("got") == 1 }) },
	},
	{
		mode: "stop-backing-off", child: func(k *testChild) {},
		set:  func(s *config.Supervision) { s.BaseBackoff, s.MaxBackoff = time.Hour, time.Hour },
		test: func(h *host) { h.waitForState(heartbeat.Restarting, "exit status 0") },
	},
	{
		mode: "stop-failed", child: func(k *testChild) {},
		set:  func(s *config.Supervision) { s.MaxRestarts = 0 },
		test: func(h *host) { h.waitForState(heartbeat.Failed) },
	},
	{
		mode: "stop-running", child: unstoppable,
		test: func(h *host) { h.waitReady() },
	},
	{
		mode: "stop-with-calls", child: unstoppable, tools: []string{"act"},
		test: func(h *host) { h.waitReady(); h.keepCalling(3) },
	},
	{
		mode: "stop-draining", child: unstoppable, tools: []string{"act"},
		test: func(h *host) {
			h.waitReady()
			h.keepCalling(1)
			h.control("drain", fmt.Sprintf(`{"id":%q}`, h.id))
			h.waitForState(heartbeat.Draining, "drain requested")
		},
	},
	{
		mode: "stop-with-sigstop", child: unstoppable, tools: []string{"act"},
		test: func(h *host) { h.waitReady(); h.keepCalling(1); h.signal(syscall.SIGSTOP) },
	},
	{
		mode: "stop-not-reading", child: func(k *testChild) {
			signal.Ignore(syscall.SIGTERM)
			k.serve(map[string]func(message){"act": func(message) { k.notify("got", "{}"); hang() }})
		},
		tools: []string{"act"},
		test:  func(h *host) { h.waitReady(); h.keepCalling(100) },
	},
	{
		mode: "stop-restarting", child: unstoppable,
		test: func(h *host) {
			h.waitReady()
			h.restart()
			h.waitForState(heartbeat.Ready) // while the former process takes four seconds to end
		},
	},
	{
		mode: "stop-http", manifest: overHTTP("mcp"),
		web: func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if call := strings.Contains(string(body), `"tools/call"`); call || r.Method == http.MethodDelete {
				if call {
					stopped.calls.Add(1)
				}
				<-r.Context().Done()
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			stopped.ServeHTTP(w, r)
		},
		test: func(h *host) {
			h.waitReady()
			ended, before := make(chan error, 1), stopped.calls.Load()
			go func() { _, err := h.call("echo", "{}"); ended <- err }() // ends with the bridge
			h.Cleanup(func() { h.wantError(<-ended, rpc.CodeExited, rpc.RanMaybe) })
			h.eventually("the call is in flight", func() bool { return stopped.calls.Load() == before+1 })
		},
	},
	{
		mode: "stop-healthy", child: func(k *testChild) { k.serve(nil) },
		test: func(h *host) { h.waitReady() },
	},
}

var stopped = &sessions{known: map[string]bool{}}

// keepCalling keeps n calls in flight until the end of the test.
func (h *host) keepCalling(n int) {
	h.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { h.call("act", "{}") }) // ends with the bridge
	}
	h.Cleanup(wg.Wait)
	h.eventually("the calls are in flight", func() bool { return h.events("got") >= 1 })
}

// TestStop stops a bridge while its extension is in each possible state. A stop takes at most five seconds, whatever the
// extension does, and leaves no process.
func TestStop(t *testing.T) {
	t.Parallel()
	w := newSharedMesh(t)
	runRows(t, stops, func(t *testing.T, f fault) {
		h := w.host(t, f)
		f.test(h)
		h.stopCalls()
		began := time.Now()
		took := h.stop()
		t.Logf("stopped in %s", took.Round(time.Millisecond))
		h.checkStopBegan(began, took)
		if took > maxStop+busy {
			h.Errorf("the bridge took %s to stop", took)
		}
	})
}

// checkStopBegan fails unless the stop reached the child within a second: the child then sends the notification
// "shutdown", or, if no process runs, the stop is over. The remaining rows are skipped, because their child cannot send a
// notification: it is stopped, hangs in a call, or is already being stopped.
func (h *host) checkStopBegan(began time.Time, took time.Duration) {
	h.Helper()
	after := took
	switch h.id {
	case "stop-handshaking", "stop-running", "stop-with-calls", "stop-draining":
		h.eventually("the child has sent its notification", func() bool { return !h.receivedAt("shutdown").IsZero() })
		after = h.receivedAt("shutdown").Sub(began)
	case "stop-spawning", "stop-backing-off", "stop-failed", "stop-healthy":
	default:
		return
	}
	h.Logf("the stop began after %s", after.Round(time.Millisecond))
	if after > time.Second+busy {
		h.Errorf("the stop began after %s", after)
	}
}
