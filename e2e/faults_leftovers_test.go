package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// leftoverFaults are children that do not end, leave processes after them, or write too much or what is secret.
var leftoverFaults = []fault{
	{
		mode: "ignores-sigterm", does: "ignores the end of its input and SIGTERM, with a call in flight, while the bridge stops",
		caller:   "`extension_exited` (`ran: maybe`)",
		operator: "a stop of the bridge that takes 5 s at most",
		bridge:   "waits 0.5 s for calls in flight, closes the input, waits `shutdown_grace` (3 s), sends SIGTERM, and SIGKILL a second later",
		tools:    []string{"act"},
		child: func(k *testChild) {
			signal.Ignore(syscall.SIGTERM)
			k.serve(only("act", func(message) { k.notify("got", "{}"); hang() }))
		},
		test: func(h *host) {
			h.waitReady()
			ended := h.inFlight(1, "act", func() {
				if took := h.stop(); took < 3*time.Second {
					h.Errorf("the stop took %s", took)
				}
			})
			h.wantError(ended[0], rpc.CodeExited, rpc.RanMaybe)
		},
	},
	{
		mode: "grandchild-holds-pipes", does: "exits with a call in flight, and leaves a grandchild that keeps its pipes open",
		caller:   "`extension_exited` (`ran: maybe`) at once; the next call succeeds",
		operator: "one restart",
		bridge:   "waits for the end of the process, not of its output; sends SIGTERM, then SIGKILL to the grandchild",
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(message) { spawn("stays", false); os.Exit(5) }))
		},
		test: func(h *host) {
			h.waitReady()
			h.within(time.Second, "the failure", func() {
				_, err := h.call("act", "{}")
				h.wantError(err, rpc.CodeExited, rpc.RanMaybe, "exit status 5")
			})
			h.eventually("the grandchild is gone", func() bool { return len(h.processes("stays")) == 0 })
			h.waitForRestarts(1)
			h.callSucceeds()
		},
	},
	{
		mode: "starts-a-daemon", does: "starts a daemon (double fork, own session, ignores SIGTERM) and is killed",
		caller:   "calls in flight fail, the next one succeeds",
		operator: "one restart",
		bridge:   "finds the daemon by the cookie in its environment, and kills it before the restart",
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) { spawn("forks", true); k.result(m, "true") }))
		},
		test: func(h *host) {
			h.waitReady()
			if _, err := h.call("act", "{}"); err != nil {
				h.Fatal(err)
			}
			if _, err := os.Stat("/proc/self/environ"); err == nil && len(h.processes("stays")) != 1 {
				h.Errorf("there is no daemon: %v", h.processes("stays"))
			}
			h.signal(syscall.SIGKILL)
			h.eventually("the daemon is gone", func() bool { return len(h.processes("stays")) == 0 })
			h.waitForRestarts(1)
			h.callSucceeds()
			if _, err := h.call("act", "{}"); err != nil { // a daemon for the stop at the end of the test
				h.Fatal(err)
			}
		},
	},
	{
		mode: "floods-stderr", does: "writes 50,000 lines to standard error as fast as it can",
		caller:   "nothing",
		operator: "in the log and on `P.log.<id>` a burst of 1,000 lines, then 200 a second, with records that count the dropped lines",
		bridge:   "reads standard error at any rate, so that the child does not block",
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				var all strings.Builder
				for n := range floodLines {
					fmt.Fprintf(&all, "line %d of a flood\n", n)
				}
				io.WriteString(os.Stderr, all.String())
				k.result(m, "true")
			}))
		},
		test: func(h *host) {
			records := make(chan *nats.Msg, floodLines)
			if _, err := h.w.nc.ChanSubscribe("ext.log."+h.id, records); err != nil {
				h.Fatal(err)
			}
			h.waitReady()
			began := time.Now()
			h.within(5*time.Second, "the call", func() {
				if _, err := h.call("act", "{}"); err != nil {
					h.Error(err)
				}
			})
			lines, dropped := 0, 0
			for lines+dropped < floodLines {
				var r struct {
					ID, Line string
					Dropped  int
				}
				select {
				case m := <-records:
					if err := json.Unmarshal(m.Data, &r); err != nil || r.ID != h.id || (r.Dropped > 0) == (r.Line != "") {
						h.Fatalf("a record: %s, %v", m.Data, err)
					}
				case <-time.After(time.Minute):
					h.Fatalf("of %d lines, %d were published and %d were reported as dropped", floodLines, lines, dropped)
				}
				dropped += r.Dropped
				if r.Dropped == 0 {
					lines++
				}
			}
			most := 1000 + int(200*time.Since(began).Seconds()) + 1000
			if lines+dropped != floodLines || lines < 1000 || lines > most {
				h.Errorf("of %d lines, %d were published and %d were reported as dropped", floodLines, lines, dropped)
			}
		},
	},
	{
		mode: "floods-events", does: "sends 50,000 notifications as fast as it can, and then its answer",
		caller:   "nothing",
		operator: "on `SP.<id>.event` a burst of 5,000 notifications, then 1,000 a second; `notifications dropped: too many per second` in the log; the rest counted in the control status",
		bridge:   "drops the excess: all extensions of a host share one connection",
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				k.write(strings.Repeat(`{"jsonrpc":"2.0","method":"flood","params":{"n":1}}`+"\n", floodLines))
				k.result(m, "true")
			}))
		},
		test: func(h *host) {
			h.waitReady()
			began := time.Now()
			h.within(5*time.Second, "the call", func() {
				if _, err := h.call("act", "{}"); err != nil {
					h.Error(err)
				}
			})
			h.eventually("all of them are accounted for", func() bool {
				return h.events("flood")+int(h.skipped().Events) == floodLines
			})
			most := 5000 + int(1000*time.Since(began).Seconds()) + 1000
			if n := h.events("flood"); n < 5000 || n > most {
				h.Errorf("%d of %d notifications were passed on", n, floodLines)
			}
			if !strings.Contains(h.log.String(), "notifications dropped: too many per second") {
				h.Error("the log lacks the warning")
			}
			h.callSucceeds()
		},
	},
	{
		mode: "prints-secrets", does: "prints a token everywhere: on standard error, as noise on standard output, in its last line, in the error of `initialize`",
		caller:   "`[FAULT_TOKEN]` in the reason, nothing of standard error",
		operator: "`[FAULT_TOKEN]` in log, `P.log.<id>`, control status and catalog",
		bridge:   "replaces known values of secrets before a line leaves the bridge",
		tools:    []string{"act"},
		more:     "[requires]\nenv = [\"FAULT_TOKEN\"]\n",
		child: func(k *testChild) {
			token := os.Getenv("FAULT_TOKEN")
			if runNumber() > 1 {
				k.serve(only("initialize", func(m message) { k.fail(m, -32000, "refused: "+token) }))
				return
			}
			k.serve(only("act", func(message) {
				k.write("DEBUG token is " + token + "\n")
				fmt.Fprintln(os.Stderr, "connecting with", token)
				os.Exit(1)
			}))
		},
		set: func(s *config.Supervision) { s.MaxRestarts = 1 },
		test: func(h *host) {
			var record atomic.Pointer[string]
			if _, err := h.w.nc.Subscribe("ext.log."+h.id, func(m *nats.Msg) { s := string(m.Data); record.Store(&s) }); err != nil {
				h.Fatal(err)
			}
			h.waitReady()
			_, err := h.call("act", "{}")
			h.wantError(err, rpc.CodeExited, rpc.RanMaybe)
			if text := string(rpc.AsError(err).Data) + err.Error(); strings.Contains(text, "connecting") {
				h.Errorf("the caller got the last lines of standard error: %s", text)
			}
			state := h.waitForState("failed", "refused: [FAULT_TOKEN]").State
			h.eventually("the line is on the mesh", func() bool { return record.Load() != nil })
			for where, text := range map[string]string{
				"P.log": *record.Load(), "status": fmt.Sprintf("%+v", h.status().LastExit),
				"logs": string(h.control("logs", fmt.Sprintf(`{"id":%q}`, h.id))), "catalog": state.Reason, "log": h.log.String(),
			} {
				if strings.Contains(text, hostSecret) {
					h.Errorf("the secret is in the %s: %s", where, text)
				}
				if where != "status" && !strings.Contains(text, "[FAULT_TOKEN]") {
					h.Errorf("the line is not in the %s: %s", where, text)
				}
			}
			if !strings.Contains(h.log.String(), "DEBUG token is [FAULT_TOKEN]") {
				h.Error("the noise is not in the log")
			}
		},
	},
	{
		mode: "bridge-is-killed", does: "has a grandchild and a daemon, both of which ignore SIGTERM, when its bridge is killed with SIGKILL",
		caller:   "calls in flight time out, or fail after 5 s of silence if they requested a stream; new calls: `unavailable`",
		operator: "the host's extensions are `lost` within about 2 s",
		bridge:   "its guard process kills all processes of the bridge within 2 s ([what is guaranteed](#processes-after-a-stop))",
		tools:    []string{"act", "wait"},
		child: func(k *testChild) {
			k.serve(map[string]func(message){
				"act":  func(m message) { spawn("stays", false); spawn("forks", true); k.result(m, "true") },
				"wait": func(message) { k.notify("got", "{}") },
			})
		},
		test: killTheBridge,
	},
}

const floodLines = 50_000

// killTheBridge runs the same extension with a bridge in a separate process, and kills that process.
func killTheBridge(h *host) {
	exe, err := os.Executable()
	if err != nil {
		h.Fatal(err)
	}
	h.waitReady()
	h.stop()
	h.waitForState("shutdown")
	p := start(h.T, []string{"E2E_MODE=bridge", "NATS_URL=" + h.w.url, "E2E_NAME=" + h.id, "E2E_DIR=" + h.dir, h.envMark}, exe)
	h.waitReady()
	if _, err := h.call("act", "{}"); err != nil {
		h.Fatal(err)
	}
	if _, err := os.Stat("/proc/self/environ"); err == nil {
		h.eventually("it has a grandchild and a daemon", func() bool { return len(h.processes("stays")) == 2 })
	}
	// The registry pings bridges once a second, and marks a bridge lost only if it has answered before.
	pings, err := h.w.nc.SubscribeSync("ext.control." + h.id)
	if err != nil {
		h.Fatal(err)
	}
	for range 2 {
		if _, err := pings.NextMsg(time.Minute); err != nil {
			h.Fatal(err)
		}
	}
	pings.Unsubscribe()
	ended := h.inFlight(1, "wait", func() {
		p.cmd.Process.Kill()
		h.within(2*time.Second, "the end of all processes of the bridge", func() {
			h.eventually("no process is left", func() bool { return len(h.processes("")) == 0 })
		})
		h.within(4*time.Second, "the state lost", func() { h.waitForState("lost") })
		_, err := h.call("echo", "{}")
		h.wantError(err, rpc.CodeUnavailable, rpc.RanNo, "lost")
	})
	h.wantError(ended[0], rpc.CodeExited, rpc.RanMaybe, "sent nothing for")
}
