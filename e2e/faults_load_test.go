package e2e

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// impatient makes calls run out of time soon.
func impatient(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 150*time.Millisecond, 0 }

// enoughTime is the header of a call that has to be answered, to an extension whose call_timeout is short.
var enoughTime = []string{mesh.HeaderTimeout, "15000"}

// silent is a kid whose tool act never answers, while everything else does.
func silent(k *kid) { k.serve(only("act", func(message) { k.notify("got", "{}") })) }

// breaker is what the catalog says of the first instance's.
func (h *host) breaker() heartbeat.Breaker {
	e := h.entry()
	if e.State == nil || len(e.State.Instances) == 0 || e.State.Instances[0].Breaker == nil {
		return heartbeat.Breaker{}
	}
	return *e.State.Instances[0].Breaker
}

// timesOut makes n calls one after the other that have to run out of time.
func (h *host) timesOut(n int) {
	h.Helper()
	for range n {
		_, err := h.ask("tools/act", "{}")
		h.fails(err, rpc.CodeTimeout, rpc.RanMaybe)
	}
}

// loadFaults are about too many calls, and calls that come to nothing.
var loadFaults = []fault{
	{
		mode: "breaker", does: "answers nothing any more to one tool",
		caller: "`timeout`; after five in a row `breaker_open` (`ran: no`) with `retry_after_ms`, at once", operator: "the breaker `open` with `retry_at`, in beats and catalog, as `ext:stdio:<id>` in the log; `available` false",
		bridge: "after 10 s, doubling to 120 s, lets one call at a time through; two answers close it, and so does a handshake",
		tools:  []string{"act"}, kid: silent, set: impatient,
		test: func(h *host) {
			h.ready()
			h.timesOut(5)
			h.within(500*time.Millisecond, "the refusal", func() {
				_, err := h.ask("tools/echo", "{}")
				if d := h.fails(err, rpc.CodeBreakerOpen, rpc.RanNo, "ext:stdio:breaker"); d.RetryAfterMS <= 0 || d.RetryAfterMS > 10_001 {
					h.Errorf("retry after %d ms", d.RetryAfterMS)
				}
			})
			h.eventually("the catalog shows it open", func() bool { b := h.breaker(); return b.State == heartbeat.BreakerOpen && b.RetryAt != nil })
			if e := h.entry(); e.State.Available {
				h.Error("the catalog says that it is available")
			}
			for until := h.breaker().RetryAt; time.Now().Before(*until); {
				nap(h.Context(), time.Until(*until))
			}
			for range 2 {
				if _, err := h.ask("tools/echo", "{}", enoughTime...); err != nil {
					h.Errorf("a probe: %v", err)
				}
			}
			h.eventually("the catalog shows it closed", func() bool { return h.breaker().State == heartbeat.BreakerClosed })
			h.recovers()
		},
	},
	{
		mode: "restart-closes-breaker", does: "answers nothing any more to one tool, and is restarted",
		caller: "answers, from the new life on", operator: "`extctl restart ID`; the breaker `closed`", bridge: "closes it with the handshake",
		tools: []string{"act"}, kid: silent, set: impatient,
		test: func(h *host) {
			h.ready()
			h.timesOut(5)
			_, err := h.ask("tools/echo", "{}")
			h.fails(err, rpc.CodeBreakerOpen, rpc.RanNo)
			h.eventually("the catalog shows it open", func() bool { return h.breaker().State == heartbeat.BreakerOpen })
			h.restart()
			h.eventually("the catalog shows it closed", func() bool { return h.breaker().State == heartbeat.BreakerClosed })
			h.recovers()
		},
	},
	{
		mode: "death-is-no-breaker", does: "dies with 64 calls in flight",
		caller: "`extension_exited` for those; the next 64 wait for the new life and are answered", operator: "one restart, the breaker `closed`",
		bridge: "does not count a death",
		tools:  []string{"act"}, kid: silent,
		test: func(h *host) {
			h.ready()
			for _, err := range h.inFlight(64, "act", func() { h.signal(syscall.SIGKILL) }) {
				h.fails(err, rpc.CodeExited, rpc.RanMaybe)
			}
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() { h.within(3*time.Second, "one of 64 calls after a crash", h.good) })
			}
			wg.Wait()
			h.restarts(1)
			if b := h.status().Breaker; b == nil || b.State != heartbeat.BreakerClosed {
				h.Errorf("the breaker: %+v", b)
			}
		},
	},
	{
		mode: "sigstop", does: "is stopped by SIGSTOP (or a debugger, or a swapping host)",
		caller: "`timeout` (`ran: maybe`); `breaker_open` after five; then answers", operator: "one restart: `it hangs: a call is overdue, and for 30s it neither answered a ping nor said anything`",
		bridge: "pings it when a call is overdue; SIGTERM (and SIGCONT) after `hang_timeout`, SIGKILL a second later",
		kid:    func(k *kid) { k.serve(nil) },
		set:    func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 200*time.Millisecond, 300*time.Millisecond },
		test: func(h *host) {
			h.ready()
			h.signal(syscall.SIGSTOP)
			_, err := h.ask("tools/echo", "{}")
			h.fails(err, rpc.CodeTimeout, rpc.RanMaybe)
			h.restarts(1)
			h.hung()
		},
	},
	{
		mode: "deadlock", does: "blocks in a call, for good, and reads nothing any more",
		caller: "`timeout` (`ran: maybe`); `breaker_open` after five; then answers", operator: "one restart: `it hangs: …`", bridge: "pings it when a call is overdue; SIGTERM after `hang_timeout`, SIGKILL a second later",
		tools: []string{"act"},
		kid:   func(k *kid) { k.serve(only("act", func(message) { hang() })) },
		set:   func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 200*time.Millisecond, 300*time.Millisecond },
		test: func(h *host) {
			h.ready()
			_, err := h.ask("tools/act", "{}")
			h.fails(err, rpc.CodeTimeout, rpc.RanMaybe)
			h.restarts(1)
			h.hung()
		},
	},
	{
		mode: "busy", does: "takes longer over a call than its time, and answers pings meanwhile",
		caller: "`timeout` for that call, answers to others", operator: "nothing", bridge: "does not take it for hung",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				go func() { // ends with its answer
					rest(4 * time.Second) // over call_timeout and hang_timeout
					k.result(m, "true")
				}()
			}))
		},
		set: func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 150*time.Millisecond, 2*time.Second },
		test: func(h *host) {
			h.ready()
			pid := h.status().PID
			h.timesOut(1)
			h.good()
			h.eventually("its late answer is dropped", func() bool { return h.skipped().UnknownIDs == 1 })
			h.sameLife(pid)
		},
	},
	{
		mode: "busy-without-ping", does: "takes longer over a call than its time, and answers -32601 to pings",
		caller: "`timeout` for that call, answers to others", operator: "nothing", bridge: "does not take it for hung: any answer is life",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(map[string]func(message){
				"act":  func(message) {},
				"ping": func(m message) { k.notify("pinged", "{}"); k.fail(m, -32601, "what is ping?") },
			})
		},
		set: func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 150*time.Millisecond, 2*time.Second },
		test: func(h *host) {
			h.ready()
			pid := h.status().PID
			h.timesOut(1)
			h.eventually("it is pinged", func() bool { return h.events("pinged") > 0 })
			nap(h.Context(), 3*time.Second) // in which it must not be restarted
			h.good()
			h.sameLife(pid)
		},
	},
	{
		mode: "busy-with-one-thread", does: "takes longer over a call than its time, with one thread: it answers nothing until it is done",
		caller: "`timeout` for the call, and for others that come meanwhile", operator: "nothing",
		bridge: "does not take it for hung: it says something within `hang_timeout`",
		tools:  []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) { rest(600 * time.Millisecond); k.result(m, "true") }))
		},
		set: func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = 150*time.Millisecond, 5*time.Second },
		test: func(h *host) {
			h.ready()
			pid := h.status().PID
			h.timesOut(2)
			h.eventually("its late answers are dropped", func() bool { return h.skipped().UnknownIDs >= 2 })
			h.good()
			h.sameLife(pid)
		},
	},
	{
		mode: "overload", does: "has as many calls in flight as it may (`max_inflight`)",
		caller: "`overloaded` (`ran: no`) at once, with `limit` and `retry_after_ms`", operator: "nothing", bridge: "refuses what is too much",
		tools: []string{"act"}, kid: silent,
		set: func(s *config.Supervision) { s.MaxInflight = 4 },
		test: func(h *host) {
			h.ready()
			h.inFlight(2, "act", func() {
				for range 2 { // of another caller: one may have half
					if err := h.w.nc.PublishRequest("ext."+h.id+".rpc", h.w.nc.NewInbox(), []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/act"}`)); err != nil {
						h.Fatal(err)
					}
				}
				h.eventually("all calls are in flight", func() bool { return h.events("got") >= 4 })
				h.within(500*time.Millisecond, "the refusal", func() {
					_, err := h.ask("tools/echo", "{}")
					if d := h.fails(err, rpc.CodeOverloaded, rpc.RanNo); d.Limit != 4 || d.RetryAfterMS <= 0 {
						h.Errorf("details: %+v", d)
					}
				})
				h.signal(syscall.SIGKILL)
			})
			h.restarts(1)
			h.good()
		},
	},
	{
		mode: "slow-tool", does: "has a slow tool, of which 100 calls are waiting",
		caller: "fast tools answer at once", operator: "nothing", bridge: "nothing waits behind anything, up to `max_inflight`",
		tools: []string{"act"}, kid: silent,
		test: func(h *host) {
			h.ready()
			h.inFlight(100, "act", func() {
				for range 20 {
					h.within(500*time.Millisecond, "a fast call", h.good)
				}
				h.signal(syscall.SIGKILL)
			})
		},
	},
	{
		mode: "many-restarts", does: "dies 20 times (200 with EXTMESH_SLOW=1)",
		caller: "`extension_exited`, 20 times", operator: "20 restarts", bridge: "keeps no descriptor, no goroutine, no zombie",
		alone: true,
		tools: []string{"act"},
		kid:   func(k *kid) { k.serve(only("act", func(message) { die() })) },
		set: func(s *config.Supervision) {
			s.MaxRestarts, s.BaseBackoff, s.MaxBackoff = 1000, time.Millisecond, time.Millisecond
		},
		test: func(h *host) { dieOften(h) },
	},
}

// hung fails unless the last life was ended for hanging, and calls work again.
func (h *host) hung() {
	h.Helper()
	if e := h.status().LastExit; e == nil || e.Cause == "" || e.Cause[:len("it hangs")] != "it hangs" {
		h.Errorf("its last exit: %+v", e)
	}
	h.recovers()
}

func dieOften(h *host) {
	n := 20
	if slowTests() {
		n = 200
	}
	h.ready()
	crash := func() {
		_, err := h.call("act", "{}")
		h.fails(err, rpc.CodeExited, rpc.RanMaybe)
		h.good()
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
