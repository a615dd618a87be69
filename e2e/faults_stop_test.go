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

// unstoppable is a kid that ignores all it can, in whatever state it is.
func unstoppable(k *kid) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	k.serve(map[string]func(message){"act": func(message) { k.notify("got", "{}") }})
	k.notify("told", "{}")
	hang()
}

// stops are the states that a stop may find an extension in.
var stops = []fault{
	{
		mode: "stop-spawning", kid: func(k *kid) {},
		set: func(s *config.Supervision) {
			s.MaxRestarts, s.BaseBackoff, s.MaxBackoff = 1000, time.Millisecond, time.Millisecond
		},
		test: func(h *host) {
			h.eventually("it is spawned again and again", func() bool { return h.status().LastExit != nil })
		},
	},
	{
		mode: "stop-handshaking",
		kid: func(k *kid) {
			signal.Ignore(syscall.SIGTERM)
			k.next()
			k.notify("got", "{}")
			k.next() // the end
			k.notify("told", "{}")
			hang()
		},
		test: func(h *host) { h.eventually("it has initialize", func() bool { return h.events("got") == 1 }) },
	},
	{
		mode: "stop-backing-off", kid: func(k *kid) {},
		set:  func(s *config.Supervision) { s.BaseBackoff, s.MaxBackoff = time.Hour, time.Hour },
		test: func(h *host) { h.becomes(heartbeat.Restarting, "exit status 0") },
	},
	{
		mode: "stop-failed", kid: func(k *kid) {},
		set:  func(s *config.Supervision) { s.MaxRestarts = 0 },
		test: func(h *host) { h.becomes(heartbeat.Failed) },
	},
	{
		mode: "stop-running", kid: unstoppable,
		test: func(h *host) { h.ready() },
	},
	{
		mode: "stop-with-calls", kid: unstoppable, tools: []string{"act"},
		test: func(h *host) { h.ready(); h.keepsCalling(3) },
	},
	{
		mode: "stop-draining", kid: unstoppable, tools: []string{"act"},
		test: func(h *host) {
			h.ready()
			h.keepsCalling(1)
			h.control("drain", fmt.Sprintf(`{"id":%q}`, h.id))
			h.becomes(heartbeat.Draining, "asked to drain")
		},
	},
	{
		mode: "stop-stopped", kid: unstoppable, tools: []string{"act"},
		test: func(h *host) { h.ready(); h.keepsCalling(1); h.signal(syscall.SIGSTOP) },
	},
	{
		mode: "stop-deaf", kid: func(k *kid) {
			signal.Ignore(syscall.SIGTERM)
			k.serve(map[string]func(message){"act": func(message) { k.notify("got", "{}"); hang() }})
		},
		tools: []string{"act"},
		test:  func(h *host) { h.ready(); h.keepsCalling(100) },
	},
	{
		mode: "stop-restarting", kid: unstoppable,
		test: func(h *host) {
			h.ready()
			h.restart()
			h.becomes(heartbeat.Ready) // still: the old life takes its four seconds
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
			h.ready()
			ended, before := make(chan error, 1), stopped.calls.Load()
			go func() { _, err := h.call("echo", "{}"); ended <- err }() // ends with the bridge
			h.Cleanup(func() { h.fails(<-ended, rpc.CodeExited, rpc.RanMaybe) })
			h.eventually("the call is in flight", func() bool { return stopped.calls.Load() == before+1 })
		},
	},
	{
		mode: "stop-well", kid: func(k *kid) { k.serve(nil) },
		test: func(h *host) { h.ready() },
	},
}

var stopped = &sessions{known: map[string]bool{}}

// keepsCalling has n calls in flight until the test's end.
func (h *host) keepsCalling(n int) {
	h.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { h.call("act", "{}") }) // ends with the bridge
	}
	h.Cleanup(wg.Wait)
	h.eventually("the calls are in flight", func() bool { return h.events("got") >= 1 })
}

// TestStop stops a bridge whose extension is in each of the states that it can be in: that takes five seconds at
// most, whatever the extension does, and leaves nothing. Some take four and a half by design: what takes too long
// beside all the others is tried again with nothing beside it.
func TestStop(t *testing.T) {
	w := newWorld(t)
	besideEachOther(t, stops, func(t *testing.T, f fault, again func()) {
		h := w.host(t, f)
		h.again = again
		f.test(h)
		h.quiet()
		began := time.Now()
		took := h.stop()
		t.Logf("stopped in %s", took.Round(time.Millisecond))
		h.startsToStop(began, took)
		if took > maxStop && !raceEnabled {
			h.tooSlow("the bridge took %s to stop", took)
		}
	})
}

// startsToStop fails unless the stop had begun within a second: who can say so was told to stop by then, and where
// nothing runs there was nothing to wait for. The others cannot say so: they are stopped, hang in a call, or are being
// stopped already.
func (h *host) startsToStop(began time.Time, took time.Duration) {
	h.Helper()
	after := took
	switch h.id {
	case "stop-handshaking", "stop-running", "stop-with-calls", "stop-draining":
		h.eventually("the child has said that it was told", func() bool { return !h.saidAt("told").IsZero() })
		after = h.saidAt("told").Sub(began)
	case "stop-spawning", "stop-backing-off", "stop-failed", "stop-well":
	default:
		return
	}
	h.Logf("told after %s", after.Round(time.Millisecond))
	if after > time.Second && !raceEnabled {
		h.tooSlow("the stop began after %s", after)
	}
}
