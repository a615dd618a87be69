package e2e

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// shortTimeouts lets calls time out soon.
func shortTimeouts(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 150*time.Millisecond, 0 }

// longTimeout is the header of a call that must be answered by an extension with a short call_timeout.
var longTimeout = []string{wire.HeaderTimeout, "15000"}

// silent is a child that never answers calls of the tool act, and answers all other requests.
func silent(k *testChild) { k.serve(only("act", func(message) { k.notify("got", "{}") })) }

// breaker returns the breaker of the first instance as the catalog shows it.
func (h *host) breaker() heartbeat.Breaker {
	e := h.entry()
	if e.State == nil || len(e.State.Instances) == 0 || e.State.Instances[0].Breaker == nil {
		return heartbeat.Breaker{}
	}
	return *e.State.Instances[0].Breaker
}

// timesOut makes n calls, one after another, each of which must time out.
func (h *host) timesOut(n int) {
	h.Helper()
	for range n {
		_, err := h.request("tools/act", "{}")
		h.wantError(err, rpc.CodeTimeout, rpc.RanMaybe)
	}
}

// loadFaults are about overload, timeouts, breakers and hung processes.
var loadFaults = []fault{
	{
		mode: "breaker", does: "stops answering calls of one tool",
		caller: "`timeout`; after five in a row `breaker_open` (`ran: no`) with `retry_after_ms`, at once", operator: "the breaker `open` with `retry_at` in heartbeats and catalog, as `ext:stdio:<id>` in the log; `available` false",
		bridge: "after 10 s (doubled each time, up to 120 s) lets one call at a time through; two answers close the breaker, and so does a handshake",
		tools:  []string{"act"}, child: silent, set: shortTimeouts,
		test: func(h *host) {
			h.waitReady()
			h.timesOut(5)
			h.within(500*time.Millisecond, "the refusal", func() {
				_, err := h.request("tools/echo", "{}")
				if d := h.wantError(err, rpc.CodeBreakerOpen, rpc.RanNo, "ext:stdio:breaker"); d.RetryAfterMS <= 0 || d.RetryAfterMS > 10_001 {
					h.Errorf("retry after %d ms", d.RetryAfterMS)
				}
			})
			h.eventually("the catalog shows it open", func() bool { b := h.breaker(); return b.State == heartbeat.BreakerOpen && b.RetryAt != nil })
			if e := h.entry(); e.State.Available {
				h.Error("the catalog shows it as available")
			}
			for until := h.breaker().RetryAt; time.Now().Before(*until); {
				sleep(h.Context(), time.Until(*until))
			}
			for range 2 {
				if _, err := h.request("tools/echo", "{}", longTimeout...); err != nil {
					h.Errorf("a probe: %v", err)
				}
			}
			h.eventually("the catalog shows it closed", func() bool { return h.breaker().State == heartbeat.BreakerClosed })
			h.waitForSuccess()
		},
	},
	{
		mode: "restart-closes-breaker", does: "stops answering calls of one tool, and is restarted by the operator",
		caller: "answers after the restart", operator: "the breaker `closed` after `extctl restart ID`", bridge: "closes the breaker with the handshake",
		tools: []string{"act"}, child: silent, set: shortTimeouts,
		test: func(h *host) {
			h.waitReady()
			h.timesOut(5)
			_, err := h.request("tools/echo", "{}")
			h.wantError(err, rpc.CodeBreakerOpen, rpc.RanNo)
			h.eventually("the catalog shows it open", func() bool { return h.breaker().State == heartbeat.BreakerOpen })
			h.restart()
			h.eventually("the catalog shows it closed", func() bool { return h.breaker().State == heartbeat.BreakerClosed })
			h.waitForSuccess()
		},
	},
	{
		mode: "exit-keeps-breaker-closed", does: "is killed with 64 calls in flight",
		caller: "`extension_exited` for those; the next 64 wait for the restart and are answered", operator: "one restart, the breaker `closed`",
		bridge: "does not count an exit as a failure for the breaker",
		tools:  []string{"act"}, child: silent,
		test: func(h *host) {
			h.waitReady()
			for _, err := range h.inFlight(64, "act", func() { h.signal(syscall.SIGKILL) }) {
				h.wantError(err, rpc.CodeExited, rpc.RanMaybe)
			}
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() { h.within(3*time.Second, "one of 64 calls after a crash", h.callSucceeds) })
			}
			wg.Wait()
			h.waitForRestarts(1)
			if b := h.status().Breaker; b == nil || b.State != heartbeat.BreakerClosed {
				h.Errorf("the breaker: %+v", b)
			}
		},
	},
	{
		mode: "sigstop", does: "is stopped by SIGSTOP (or a debugger, or a swapping host)",
		caller: "`timeout` (`ran: maybe`); `breaker_open` after five; then answers", operator: "one restart: `it hangs: a call is overdue, and for 30s there was neither output nor a response to a ping`",
		bridge: "pings it when a call is overdue; SIGTERM (and SIGCONT) after `hang_timeout`, SIGKILL a second later",
		child:  func(k *testChild) { k.serve(nil) },
		set:    func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 200*time.Millisecond, 300*time.Millisecond },
		test: func(h *host) {
			h.waitReady()
			h.signal(syscall.SIGSTOP)
			_, err := h.request("tools/echo", "{}")
			h.wantError(err, rpc.CodeTimeout, rpc.RanMaybe)
			h.waitForRestarts(1)
			h.endedForHanging()
		},
	},
	{
		mode: "deadlock", does: "blocks for ever in a call, and reads no more input",
		caller: "`timeout` (`ran: maybe`); `breaker_open` after five; then answers", operator: "one restart: `it hangs: …`", bridge: "pings it when a call is overdue; SIGTERM after `hang_timeout`, SIGKILL a second later",
		tools: []string{"act"},
		child: func(k *testChild) { k.serve(only("act", func(message) { hang() })) },
		set:   func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 200*time.Millisecond, 300*time.Millisecond },
		test: func(h *host) {
			h.waitReady()
			_, err := h.request("tools/act", "{}")
			h.wantError(err, rpc.CodeTimeout, rpc.RanMaybe)
			h.waitForRestarts(1)
			h.endedForHanging()
		},
	},
	{
		mode: "busy", does: "needs longer for a call than the call's timeout, and answers pings meanwhile",
		caller: "`timeout` for that call, answers to others", operator: "nothing", bridge: "does not treat it as hung",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				go func() { // ends with its answer
					pause(7 * time.Second) // over call_timeout and hang_timeout
					k.result(m, "true")
				}()
			}))
		},
		set: func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 150*time.Millisecond, 5*time.Second },
		test: func(h *host) {
			h.waitReady()
			pid := h.status().PID
			h.timesOut(1)
			h.callSucceeds()
			h.eventually("its late answer is dropped", func() bool { return h.skipped().UnknownIDs >= 1 })
			h.sameProcess(pid)
		},
	},
	{
		mode: "busy-without-ping", does: "needs longer for a call than the call's timeout, and answers pings with -32601",
		caller: "`timeout` for that call, answers to others", operator: "nothing", bridge: "does not treat it as hung: any answer shows that it works",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(map[string]func(message){
				"act":  func(message) {},
				"ping": func(m message) { k.notify("pinged", "{}"); k.fail(m, -32601, "what is ping?") },
			})
		},
		set: func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 150*time.Millisecond, 5*time.Second },
		test: func(h *host) {
			h.waitReady()
			pid := h.status().PID
			h.timesOut(1)
			h.eventually("it is pinged", func() bool { return h.events("pinged") > 0 })
			sleep(h.Context(), 6*time.Second) // it must not be restarted meanwhile
			h.callSucceeds()
			h.sameProcess(pid)
		},
	},
	{
		mode: "busy-with-one-thread", does: "needs longer for a call than the call's timeout, and has one thread: it answers nothing until the call is done",
		caller: "`timeout` for the call, and for calls that arrive meanwhile", operator: "nothing",
		bridge: "does not treat it as hung: it writes something within `hang_timeout`",
		tools:  []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) { pause(2 * time.Second); k.result(m, "true") }))
		},
		set: func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 150*time.Millisecond, 10*time.Second },
		test: func(h *host) {
			h.waitReady()
			pid := h.status().PID
			h.timesOut(2)
			h.eventually("its late answers are dropped", func() bool { return h.skipped().UnknownIDs >= 2 })
			h.callSucceeds()
			h.sameProcess(pid)
		},
	},
	{
		mode: "overload", does: "has the maximum number of calls in flight (`max_inflight`)",
		caller: "`overloaded` (`ran: no`) at once, with `limit` and `retry_after_ms`", operator: "nothing", bridge: "refuses further calls",
		tools: []string{"act"}, child: silent,
		set: func(s *config.Supervision) { s.MaxInflight = 4 },
		test: func(h *host) {
			h.waitReady()
			h.inFlight(2, "act", func() {
				for range 2 { // from another caller: one caller may have half of max_inflight
					if err := h.w.nc.PublishRequest("ext."+h.id+".rpc", h.w.nc.NewInbox(), []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/act"}`)); err != nil {
						h.Fatal(err)
					}
				}
				h.eventually("all calls are in flight", func() bool { return h.events("got") >= 4 })
				h.within(500*time.Millisecond, "the refusal", func() {
					_, err := h.request("tools/echo", "{}")
					if d := h.wantError(err, rpc.CodeOverloaded, rpc.RanNo); d.Limit != 4 || d.RetryAfterMS <= 0 {
						h.Errorf("details: %+v", d)
					}
				})
				h.signal(syscall.SIGKILL)
			})
			h.waitForRestarts(1)
			h.callSucceeds()
		},
	},
	{
		mode: "slow-tool", does: "has 100 calls of a slow tool in flight",
		caller: "answers of fast tools at once", operator: "nothing", bridge: "sends all calls to the child at once, up to `max_inflight`",
		tools: []string{"act"}, child: silent,
		test: func(h *host) {
			h.waitReady()
			h.inFlight(100, "act", func() {
				for range 20 {
					h.within(500*time.Millisecond, "a fast call", h.callSucceeds)
				}
				h.signal(syscall.SIGKILL)
			})
		},
	},
	{
		mode: "many-restarts", does: "is killed 20 times (200 with EXTMESH_SLOW=nightly)",
		caller: "`extension_exited`, 20 times", operator: "20 restarts", bridge: "leaks no descriptor, no goroutine, no zombie",
		alone: true,
		tools: []string{"act"},
		child: func(k *testChild) { k.serve(only("act", func(message) { killSelf() })) },
		set: func(s *config.Supervision) {
			s.MaxRestarts, s.BaseBackoff, s.MaxBackoff = 1000, time.Millisecond, time.Millisecond
		},
		test: func(h *host) { restartOften(h) },
	},
}

// endedForHanging fails unless the bridge stopped the previous process because it hung, and calls succeed again.
func (h *host) endedForHanging() {
	h.Helper()
	if e := h.status().LastExit; e == nil || e.Cause == "" || e.Cause[:len("it hangs")] != "it hangs" {
		h.Errorf("its last exit: %+v", e)
	}
	h.waitForSuccess()
}

func restartOften(h *host) {
	n := 20
	if nightlyTests() {
		n = 200
	}
	h.waitReady()
	crash := func() {
		_, err := h.call("act", "{}")
		h.wantError(err, rpc.CodeExited, rpc.RanMaybe)
		h.callSucceeds()
	}
	crash()
	before := resources()
	for range n {
		crash()
	}
	h.eventually(fmt.Sprintf("nothing has grown over %v", before), func() bool {
		now := resources()
		return now.goroutines <= before.goroutines+5 && now.descriptors <= before.descriptors+2 && now.zombies == 0
	})
}
