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

// lifeFaults are children that end when they should not, or never begin.
var lifeFaults = []fault{
	{
		mode: "exits-in-call", does: "exits with status 4 while it has a call",
		caller:   "the call fails at once: `extension_exited` (`ran: maybe`) with the exit status; the next one waits for the new life and succeeds",
		operator: "`restarting`, then `ready`; one restart counted",
		bridge:   "restarts it at once, the first time",
		tools:    []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(message) { fmt.Fprintln(os.Stderr, "disk full"); os.Exit(4) }))
		},
		test: func(h *host) {
			h.ready()
			h.within(time.Second, "the failure of the call", func() {
				_, err := h.call("act", "{}")
				d := h.fails(err, rpc.CodeExited, rpc.RanMaybe, "exit status 4")
				if d.Status != "exit status 4" || strings.Contains(fmt.Sprintf("%v %s", err, rpc.AsError(err).Data), "disk full") {
					h.Errorf("the caller got %v, %s", err, rpc.AsError(err).Data)
				}
			})
			h.within(2*time.Second, "the next call", h.good)
			h.restarts(1)
		},
	},
	{
		mode: "exits-after-answer", does: "answers a call and exits",
		caller:   "the answer; the next call waits for the new life and succeeds",
		operator: "one restart counted",
		bridge:   "delivers what was in the pipe, restarts it at once",
		tools:    []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) { k.result(m, `"done"`); os.Exit(0) }))
		},
		test: func(h *host) {
			h.ready()
			if got, err := h.call("act", "{}"); err != nil || got != `"done"` {
				h.Errorf("the last call of a life: %s, %v", got, err)
			}
			h.eventually("the end is noticed", func() bool { return h.status().LastExit != nil })
			h.good()
			h.restarts(1)
		},
	},
	{
		mode: "kill-9-in-flight", does: "is killed with SIGKILL while it has 20 calls",
		caller:   "all 20 fail within milliseconds: `extension_exited` (`ran: maybe`), `signal SIGKILL`; the next one succeeds",
		operator: "`restarting`, then `ready`; `last_exit` has the signal",
		bridge:   "restarts it at once, the first time",
		tools:    []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(message) { k.notify("got", "{}") }))
		},
		test: func(h *host) {
			h.ready()
			failed := h.inFlight(20, "act", func() { h.signal(syscall.SIGKILL) })
			for _, err := range failed {
				h.fails(err, rpc.CodeExited, rpc.RanMaybe, "signal SIGKILL")
			}
			h.within(2*time.Second, "the next call", h.good)
			h.restarts(1)
			if e := h.status().LastExit; e == nil || e.Status != "signal SIGKILL" {
				h.Errorf("its last exit: %+v", e)
			}
		},
	},
	{
		mode: "dies-with-answers-in-pipe", does: "answers 5 of 10 calls in one write and dies",
		caller:   "5 answers, 5 `extension_exited` (`ran: maybe`)",
		operator: "one restart counted",
		bridge:   "reads the pipe to its end before it fails what is left",
		tools:    []string{"act"},
		kid: func(k *kid) {
			var all string
			n := 0
			k.serve(only("act", func(m message) {
				if n++; n <= 5 {
					all += `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":true}` + "\n"
				}
				if n == 10 {
					k.say(all)
					die()
				}
			}))
		},
		test: func(h *host) {
			h.ready()
			answers, errs := 0, 0
			for _, err := range h.inFlight(10, "act", nil) {
				if err == nil {
					answers++
					continue
				}
				errs++
				h.fails(err, rpc.CodeExited, rpc.RanMaybe)
			}
			if answers != 5 || errs != 5 {
				h.Errorf("%d calls were answered and %d failed", answers, errs)
			}
			h.good()
		},
	},
	{
		mode: "crash-loop", does: "dies in every call",
		caller:   "`extension_exited` for each, then `unavailable` with the reason",
		operator: "`failed` after 5 restarts in 5 min; `extctl restart` brings it back with a clean sheet",
		bridge:   "stops trying; once every 5 min it tries again",
		tools:    []string{"act"},
		kid:      func(k *kid) { k.serve(only("act", func(message) { os.Exit(1) })) },
		set:      func(s *config.Supervision) { s.MaxRestarts, s.FailedRetry = 2, 0 },
		test: func(h *host) {
			h.ready()
			for n := range uint64(3) {
				_, err := h.call("act", "{}")
				h.fails(err, rpc.CodeExited, rpc.RanMaybe, "exit status 1")
				if n < 2 {
					h.restarts(n + 1)
				}
			}
			h.becomes(heartbeat.Failed, "gave up after 2 restarts", "exit status 1")
			h.within(2*time.Second, "the refusal", func() {
				_, err := h.call("echo", "{}")
				h.fails(err, rpc.CodeUnavailable, rpc.RanNo, "gave up after 2 restarts")
			})
			h.restart()
			h.becomes(heartbeat.Ready)
			h.good()
		},
	},
	{
		mode: "recovers-when-failed", does: "dies three times, then is well: what it needed has come back",
		caller:   "`unavailable` with the reason, then answers",
		operator: "`failed`, then `ready` without having done anything",
		bridge:   "one new life every `failed_retry`",
		kid: func(k *kid) {
			if life() <= 3 || !exists("back") { // in its directory, beside its manifest
				os.Exit(1)
			}
			k.serve(nil)
		},
		set: func(s *config.Supervision) { s.MaxRestarts, s.FailedRetry = 2, 700*time.Millisecond },
		test: func(h *host) {
			h.becomes(heartbeat.Failed, "gave up after 2 restarts")
			write(h, filepath.Join(h.dir, "ext", h.id, "back"), "")
			h.ready()
			h.good()
		},
	},
	{
		mode: "closes-stdout", does: "closes its standard output and lives on",
		caller:   "`extension_exited` (`ran: maybe`): `it closed its standard output and lived on`; the next call succeeds",
		operator: "one restart, with that reason",
		bridge:   "counts it as dead if it does not end within half a second: SIGTERM, SIGKILL a second later",
		tools:    []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(message) { os.Stdout.Close(); hang() }))
		},
		test: func(h *host) {
			h.ready()
			h.within(3*time.Second, "the failure", func() {
				_, err := h.call("act", "{}")
				h.fails(err, rpc.CodeExited, rpc.RanMaybe, "closed its standard output")
			})
			h.good()
			h.restarts(1)
			if e := h.status().LastExit; e == nil || !strings.Contains(e.Cause, "closed its standard output") {
				h.Errorf("its last exit: %+v", e)
			}
		},
	},
	{
		mode: "closes-stdin", does: "closes its standard input and lives on",
		caller:   "calls in flight have a second more to be answered, then `extension_exited` (`ran: maybe`); one that could not be written is made again in the next life",
		operator: "one restart: `it closed its standard input and lived on`",
		bridge:   "notices with the next write; SIGTERM a second later",
		tools:    []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				os.Stdin.Close()
				k.result(m, `"deaf"`)
				hang()
			}))
		},
		test: func(h *host) {
			h.ready()
			if got, err := h.call("act", "{}"); err != nil || got != `"deaf"` {
				h.Errorf("its last answer: %s, %v", got, err)
			}
			h.within(4*time.Second, "the failure", func() {
				// What was in the pipe may have been read; what was never written runs in the next life.
				if _, err := h.call("echo", "{}"); err != nil {
					h.fails(err, rpc.CodeExited, rpc.RanMaybe, "closed its standard input")
				}
			})
			h.good()
			h.restarts(1)
		},
	},
	{
		mode: "one-of-two-replicas-dies", does: "runs twice (`replicas: 2`), and one of the two is killed",
		caller:   "only what the dead one had in flight fails; every other call is answered, without a pause",
		operator: "one instance `restarting`, the extension `ready` all the while",
		bridge:   "the other one takes the calls; the dead one is restarted",
		set:      func(s *config.Supervision) { s.Replicas = 2 },
		kid:      func(k *kid) { k.serve(nil) },
		test: func(h *host) {
			h.eventually("both are ready", func() bool { return h.readyInstances() == 2 })
			h.signal(syscall.SIGKILL)
			lost := 0
			for range 100 {
				h.within(500*time.Millisecond, "a call", func() {
					if _, err := h.call("echo", "{}"); err != nil {
						h.fails(err, rpc.CodeExited, rpc.RanMaybe, "signal SIGKILL")
						lost++
					}
				})
			}
			if lost > 1 { // that the caller sent before anybody knew
				h.Errorf("%d calls failed", lost)
			}
			h.eventually("both are ready again", func() bool { return h.readyInstances() == 2 })
		},
	},
	{
		mode: "one-of-two-replicas-hangs", does: "runs twice, and one of the two is stopped (SIGSTOP)",
		caller:   "five `timeout`, then only answers",
		operator: "the breaker of that instance `open`; one restart after `hang_timeout`",
		bridge:   "hands calls that the open breaker, or a death, keeps from one replica to the other",
		set:      func(s *config.Supervision) { s.Replicas, s.CallTimeout, s.HangTimeout = 2, time.Second, 0 },
		kid:      func(k *kid) { k.serve(nil) },
		test: func(h *host) {
			h.eventually("both are ready", func() bool { return h.readyInstances() == 2 })
			h.signal(syscall.SIGSTOP)
			late := 0
			h.eventually("the breaker is open", func() bool {
				if _, err := h.ask("tools/echo", "{}"); err != nil {
					h.fails(err, rpc.CodeTimeout, rpc.RanMaybe)
					late++
				}
				return h.status().Breaker.State == heartbeat.BreakerOpen
			})
			switch {
			case late < 5:
				h.Errorf("%d calls ran out of time", late)
			case late > 5: // the other one has a second for each, too
				h.tooSlow("%d calls ran out of time", late)
			}
			for range 50 {
				if _, err := h.ask("tools/echo", "{}", enoughTime...); err != nil {
					h.Errorf("a call: %v", err)
				}
			}
		},
	},
	{
		mode: "dies-drained", does: "is drained by its operator, with a call in flight, answers that, and dies",
		caller:   "the answer; then `unavailable` (`ran: no`): `draining`",
		operator: "`draining`, `asked to drain`, until `extctl restart ID`",
		bridge:   "takes nothing new, and starts nothing for it",
		tools:    []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				k.notify("got", "{}")
				var drained string
				json.Unmarshal(m.arg("drained"), &drained)
				for !exists(drained) {
					rest(5 * time.Millisecond)
				}
				k.result(m, `"done"`)
				die()
			}))
		},
		test: func(h *host) {
			h.ready()
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
			h.becomes(heartbeat.Draining, "asked to drain")
			h.eventually("it has died", func() bool { s := h.status(); return s.PID == 0 && s.LastExit != nil })
			_, err := h.client.CallExt(h.Context(), h.id, "tools/echo", json.RawMessage("{}"))
			h.fails(err, rpc.CodeUnavailable, rpc.RanNo, "draining")
			if e := h.becomes(heartbeat.Draining, "asked to drain"); e.State.Available {
				h.Error("the catalog says that it is available")
			}
			h.restart()
			h.ready()
			h.good()
			if now := h.status().PID; now == pid {
				h.Error("it is the old process")
			}
		},
	},
	{
		mode: "gated", does: "requires a program and a variable that this host does not have",
		caller:   "`unavailable` (`ran: no`), with what is missing",
		operator: "`gated`: what is missing; a WARN `extension skipped: declared preconditions not satisfied`",
		bridge:   "never starts it",
		kid:      func(k *kid) { k.serve(nil) },
		more:     "[requires]\nbins = [\"no-such-program\"]\nenv = [\"NO_SUCH_VARIABLE\"]\n",
		test: func(h *host) {
			h.becomes(heartbeat.Gated, "no-such-program", "NO_SUCH_VARIABLE")
			_, err := h.client.CallExt(h.Context(), h.id, "tools/echo", json.RawMessage("{}"))
			h.fails(err, rpc.CodeUnavailable, rpc.RanNo, "gated", "no-such-program")
			if pids := h.processes("gated"); len(pids) > 0 {
				h.Errorf("it was started: %v", pids)
			}
		},
	},
}

// readyInstances counts them in the catalog.
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

// inFlight makes n calls side by side and returns how each ended. When the child, which has to say "got" for each, has
// all of them, it does then.
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
