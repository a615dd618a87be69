package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// exitFaults are children that exit when they should not, or are never started.
var exitFaults = []fault{
	{
		mode: "exits-in-call", does: "exits with status 4 while it has a call",
		caller:   "the call fails at once: `extension_exited` (`ran: maybe`) with the exit status; the next call waits for the restart and succeeds",
		operator: "`restarting`, then `ready`; one restart",
		bridge:   "restarts it at once, the first time",
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(message) { fmt.Fprintln(os.Stderr, "disk full"); os.Exit(4) }))
		},
		test: func(h *host) {
			h.waitReady()
			h.within(time.Second, "the failure of the call", func() {
				_, err := h.call("act", "{}")
				d := h.wantError(err, rpc.CodeExited, rpc.RanMaybe, "exit status 4")
				if d.Status != "exit status 4" || strings.Contains(fmt.Sprintf("%v %s", err, rpc.AsError(err).Data), "disk full") {
					h.Errorf("the caller got %v, %s", err, rpc.AsError(err).Data)
				}
			})
			h.within(2*time.Second, "the next call", h.callSucceeds)
			h.waitForRestarts(1)
		},
	},
	{
		mode: "exits-after-answer", does: "answers a call and exits",
		caller:   "the answer; the next call waits for the restart and succeeds",
		operator: "one restart",
		bridge:   "delivers all output that is in the pipe, and restarts it at once",
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) { k.result(m, `"done"`); os.Exit(0) }))
		},
		test: func(h *host) {
			h.waitReady()
			if got, err := h.call("act", "{}"); err != nil || got != `"done"` {
				h.Errorf("the last call before the exit: %s, %v", got, err)
			}
			h.eventually("the bridge reports the exit", func() bool { return h.status().LastExit != nil })
			h.callSucceeds()
			h.waitForRestarts(1)
		},
	},
	{
		mode: "kill-9-in-flight", does: "is killed with SIGKILL while it has 20 calls",
		caller:   "all 20 fail within milliseconds: `extension_exited` (`ran: maybe`), `signal SIGKILL`; the next one succeeds",
		operator: "`restarting`, then `ready`; `last_exit` has the signal",
		bridge:   "restarts it at once, the first time",
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(message) { k.notify("got", "{}") }))
		},
		test: func(h *host) {
			h.waitReady()
			failed := h.inFlight(20, "act", func() { h.signal(syscall.SIGKILL) })
			for _, err := range failed {
				h.wantError(err, rpc.CodeExited, rpc.RanMaybe, "signal SIGKILL")
			}
			h.within(2*time.Second, "the next call", h.callSucceeds)
			h.waitForRestarts(1)
			if e := h.status().LastExit; e == nil || e.Status != "signal SIGKILL" {
				h.Errorf("its last exit: %+v", e)
			}
		},
	},
	{
		mode: "exits-with-answers-in-pipe", does: "answers 5 of 10 calls in one write and is killed",
		caller:   "5 answers, 5 `extension_exited` (`ran: maybe`)",
		operator: "one restart",
		bridge:   "reads the pipe to its end, and then fails the remaining calls",
		tools:    []string{"act"},
		child: func(k *testChild) {
			var all string
			n := 0
			k.serve(only("act", func(m message) {
				if n++; n <= 5 {
					all += `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":true}` + "\n"
				}
				if n == 10 {
					k.write(all)
					killSelf()
				}
			}))
		},
		test: func(h *host) {
			h.waitReady()
			answers, errs := 0, 0
			for _, err := range h.inFlight(10, "act", nil) {
				if err == nil {
					answers++
					continue
				}
				errs++
				h.wantError(err, rpc.CodeExited, rpc.RanMaybe)
			}
			if answers != 5 || errs != 5 {
				h.Errorf("%d calls were answered and %d failed", answers, errs)
			}
			h.callSucceeds()
		},
	},
	{
		mode: "crash-loop", does: "exits in every call",
		caller:   "`extension_exited` for each, then `unavailable` with the reason",
		operator: "`failed` after 5 restarts in 5 min; `extctl restart` starts it again and resets the count",
		bridge:   "gives up; then tries once every 5 min",
		tools:    []string{"act"},
		child:    func(k *testChild) { k.serve(only("act", func(message) { os.Exit(1) })) },
		set:      func(s *config.Supervision) { s.MaxRestarts, s.FailedRetry = 2, 0 },
		test: func(h *host) {
			h.waitReady()
			for n := range uint64(3) {
				_, err := h.call("act", "{}")
				h.wantError(err, rpc.CodeExited, rpc.RanMaybe, "exit status 1")
				if n < 2 {
					h.waitForRestarts(n + 1)
				}
			}
			h.waitForState(heartbeat.Failed, "gave up after 2 restarts", "exit status 1")
			h.within(2*time.Second, "the refusal", func() {
				_, err := h.call("echo", "{}")
				h.wantError(err, rpc.CodeUnavailable, rpc.RanNo, "gave up after 2 restarts")
			})
			h.restart()
			h.waitForState(heartbeat.Ready)
			h.callSucceeds()
		},
	},
	{
		mode: "recovers-when-failed", does: "exits three times because a file is missing, and works when the file is back",
		caller:   "`unavailable` with the reason, then answers",
		operator: "`failed`, then `ready` without any action",
		bridge:   "tries again every `failed_retry`",
		child: func(k *testChild) {
			if runNumber() <= 3 || !exists("back") { // in the directory of its manifest
				os.Exit(1)
			}
			k.serve(nil)
		},
		set: func(s *config.Supervision) { s.MaxRestarts, s.FailedRetry = 2, 700*time.Millisecond },
		test: func(h *host) {
			h.waitForState(heartbeat.Failed, "gave up after 2 restarts")
			write(h, filepath.Join(h.dir, "ext", h.id, "back"), "")
			h.waitReady()
			h.callSucceeds()
		},
	},
	{
		mode: "closes-stdout", does: "closes its standard output and keeps running",
		caller:   "`extension_exited` (`ran: maybe`): `it closed its standard output and kept running`; the next call succeeds",
		operator: "one restart, with that reason",
		bridge:   "stops it if it does not exit within half a second: SIGTERM, SIGKILL a second later",
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(message) { os.Stdout.Close(); hang() }))
		},
		test: func(h *host) {
			h.waitReady()
			h.within(3*time.Second, "the failure", func() {
				_, err := h.call("act", "{}")
				h.wantError(err, rpc.CodeExited, rpc.RanMaybe, "closed its standard output")
			})
			h.callSucceeds()
			h.waitForRestarts(1)
			if e := h.status().LastExit; e == nil || !strings.Contains(e.Cause, "closed its standard output") {
				h.Errorf("its last exit: %+v", e)
			}
		},
	},
	{
		mode: "closes-stdin", does: "closes its standard input and keeps running",
		caller:   "calls in flight may be answered within one more second, otherwise `extension_exited` (`ran: maybe`); a call that could not be written is sent again after the restart",
		operator: "one restart: `it closed its standard input and kept running`",
		bridge:   "detects it with the next write; SIGTERM a second later",
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				os.Stdin.Close()
				k.result(m, `"closed"`)
				hang()
			}))
		},
		test: func(h *host) {
			h.waitReady()
			if got, err := h.call("act", "{}"); err != nil || got != `"closed"` {
				h.Errorf("its last answer: %s, %v", got, err)
			}
			h.within(4*time.Second, "the failure", func() {
				// The child may have read what was in the pipe. A call that was never written runs after the restart.
				if _, err := h.call("echo", "{}"); err != nil {
					h.wantError(err, rpc.CodeExited, rpc.RanMaybe, "closed its standard input")
				}
			})
			h.callSucceeds()
			h.waitForRestarts(1)
		},
	},
	{
		mode: "one-of-two-replicas-exits", does: "has two replicas (`replicas: 2`), one of which is killed",
		caller:   "errors only for the calls that were in flight there; every other call is answered without delay",
		operator: "one instance `restarting`; the extension stays `ready`",
		bridge:   "sends all calls to the other replica, and restarts the killed one",
		set:      func(s *config.Supervision) { s.Replicas = 2 },
		child:    func(k *testChild) { k.serve(nil) },
		test: func(h *host) {
			h.eventually("both are ready", func() bool { return h.readyInstances() == 2 })
			h.signal(syscall.SIGKILL)
			lost := 0
			for range 100 {
				h.within(500*time.Millisecond, "a call", func() {
					if _, err := h.call("echo", "{}"); err != nil {
						h.wantError(err, rpc.CodeExited, rpc.RanMaybe, "signal SIGKILL")
						lost++
					}
				})
			}
			if lost > 1 { // one may be sent before the exit is detected
				h.Errorf("%d calls failed", lost)
			}
			h.eventually("both are ready again", func() bool { return h.readyInstances() == 2 })
		},
	},
	{
		mode: "one-of-two-replicas-hangs", does: "has two replicas, one of which is stopped (SIGSTOP)",
		caller:   "five `timeout`, then only answers",
		operator: "the breaker of that instance `open`; one restart after `hang_timeout`",
		bridge:   "sends calls to the other replica while the breaker is open or the process is down",
		set:      func(s *config.Supervision) { s.Replicas, s.CallTimeout, s.HangTimeout = 2, time.Second, 0 },
		child:    func(k *testChild) { k.serve(nil) },
		test: func(h *host) {
			h.eventually("both are ready", func() bool { return h.readyInstances() == 2 })
			h.signal(syscall.SIGSTOP)
			late := 0
			h.eventually("the breaker is open", func() bool {
				if _, err := h.request("tools/echo", "{}"); err != nil {
					h.wantError(err, rpc.CodeTimeout, rpc.RanMaybe)
					late++
				}
				return h.status().Breaker.State == heartbeat.BreakerOpen
			})
			if late < 5 || late > 10 { // on a busy machine calls to the other replica can time out, too
				h.Errorf("%d calls timed out, want 5", late)
			}
			retryAt := h.status().Breaker.RetryAt // then a call is sent to the stopped one as a probe
			for n := 0; n < 50 && retryAt != nil && time.Until(*retryAt) > 3*time.Second; n++ {
				if _, err := h.request("tools/echo", "{}", longTimeout...); err != nil {
					h.Errorf("a call: %v", err)
				}
			}
		},
	},
	{
		mode: "exits-when-drained", does: "is drained by the operator while it has a call, answers the call, and exits",
		caller:   "the answer; then `unavailable` (`ran: no`): `draining`",
		operator: "`draining`, `drain requested`, until `extctl restart ID`",
		bridge:   "accepts no new calls, and does not restart it",
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				k.notify("got", "{}")
				var drained string
				json.Unmarshal(m.arg("drained"), &drained)
				for !exists(drained) {
					pause(5 * time.Millisecond)
				}
				k.result(m, `"done"`)
				killSelf()
			}))
		},
		test: func(h *host) {
			h.waitReady()
			pid := h.status().PID
			answered := make(chan string, 1)
			drained := filepath.Join(h.dir, "drained")
			go func() { // ends with its call
				got, err := h.call("act", fmt.Sprintf(`{"drained":%q}`, drained))
				answered <- fmt.Sprint(got, err)
			}()
			h.eventually("the call is in flight", func() bool { return h.events("got") == 1 })
			h.control("drain", fmt.Sprintf(`{"id":%q}`, h.id))
			write(h, drained, "")
			if got := <-answered; got != `"done"<nil>` {
				h.Errorf("the call in flight: %s", got)
			}
			h.waitForState(heartbeat.Draining, "drain requested")
			h.eventually("it has exited", func() bool { s := h.status(); return s.PID == 0 && s.LastExit != nil })
			_, err := h.client.CallExt(h.Context(), h.id, "tools/echo", json.RawMessage("{}"))
			h.wantError(err, rpc.CodeUnavailable, rpc.RanNo, "draining")
			if e := h.waitForState(heartbeat.Draining, "drain requested"); e.State.Available {
				h.Error("the catalog shows it as available")
			}
			h.restart()
			h.waitReady()
			h.callSucceeds()
			if now := h.status().PID; now == pid {
				h.Error("it is the old process")
			}
		},
	},
	{
		mode: "gated", does: "requires a program and an environment variable that this host does not have",
		caller:   "`unavailable` (`ran: no`), with what is missing",
		operator: "`gated`: what is missing; a WARN `extension skipped: declared preconditions not satisfied`",
		bridge:   "never starts it",
		child:    func(k *testChild) { k.serve(nil) },
		more:     "[requires]\nbins = [\"no-such-program\"]\nenv = [\"NO_SUCH_VARIABLE\"]\n",
		test: func(h *host) {
			h.waitForState(heartbeat.Gated, "no-such-program", "NO_SUCH_VARIABLE")
			_, err := h.client.CallExt(h.Context(), h.id, "tools/echo", json.RawMessage("{}"))
			h.wantError(err, rpc.CodeUnavailable, rpc.RanNo, "gated", "no-such-program")
			if pids := h.processes("gated"); len(pids) > 0 {
				h.Errorf("it was started: %v", pids)
			}
		},
	},
}

// readyInstances counts the extension's ready instances in the catalog.
func (h *host) readyInstances() (n int) {
	if e := h.entry(); e.State != nil {
		for _, i := range e.State.Instances {
			if i.State == heartbeat.Ready {
				n++
			}
		}
	}
	return n
}

// inFlight makes n calls in parallel and returns the error of each. It runs then when the child has received all calls;
// the child must send the notification "got" for each.
func (h *host) inFlight(n int, tool string, then func()) []error {
	h.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { _, errs[i] = h.call(tool, "{}") })
	}
	if then != nil {
		h.eventually("all calls are in flight", func() bool { return h.events("got") >= n })
		then()
	}
	wg.Wait()
	return errs
}
