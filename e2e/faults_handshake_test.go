package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// fewRestarts lets an extension fail after two restarts.
func fewRestarts(s *config.Supervision) { s.MaxRestarts = 2 }

// neverReady tests a child that never completes the handshake: the catalog and a call's error contain the reasons.
func neverReady(reasons ...string) func(h *host) {
	return func(h *host) {
		h.waitForState(heartbeat.Failed, append(reasons, "gave up after 2 restarts")...)
		h.eventually("the catalog shows its restarts", func() bool { return h.entry().State.Instances[0].Restarts == 2 })
		_, err := h.client.CallExt(h.Context(), h.id, "tools/echo", json.RawMessage("{}"))
		h.wantError(err, rpc.CodeUnavailable, rpc.RanNo, append(reasons, "failed")...)
		if n := strings.Count(h.log.String(), "level=ERROR msg=\"extension did not start\""); n != 1 {
			h.Errorf("a handshake that failed three times was logged as %d errors, want 1", n)
		}
	}
}

// backsOff describes how the bridge restarts a child that does not complete the handshake.
const backsOff = "restarts it after 1, 2, 4 … s; gives up after 5 restarts in 5 min; then tries once every 5 min"

// handshakeFaults are children that do not complete the handshake.
var handshakeFaults = []fault{
	{
		mode: "exits-at-once", does: "exits with status 0 before it reads anything",
		caller:   "`unavailable` (`ran: no`), with the reason",
		operator: "`restarting`, then `failed`: `gave up after 5 restarts: exit status 0 after …`; one ERROR in the log",
		bridge:   backsOff,
		child:    func(k *testChild) {}, set: fewRestarts, test: neverReady("exit status 0"),
	},
	{
		mode: "exits-with-status", does: "writes an error to standard error and exits with status 3 before it reads anything",
		caller:   "`unavailable` (`ran: no`), with the reason",
		operator: "`failed`: `… exit status 3 after …, stderr: no licence file`; status and last lines in the control status",
		bridge:   backsOff,
		child: func(k *testChild) {
			fmt.Fprintln(os.Stderr, "reading the licence\nno licence file")
			os.Exit(3)
		},
		set: fewRestarts,
		test: func(h *host) {
			neverReady("exit status 3", "stderr: no licence file")(h)
			if e := h.status().LastExit; e == nil || e.Status != "exit status 3" || e.StderrTail != "reading the licence\nno licence file\n" || e.UptimeSecs > 20 {
				h.Errorf("its last exit: %+v", e)
			}
		},
	},
	{
		mode: "explains-on-stdout", does: "prints its error to standard output instead of standard error, and exits with status 1",
		caller:   "`unavailable` (`ran: no`), with the reason",
		operator: "`failed`: `… exit status 1 after …, stdout: Error: API_KEY is missing`",
		bridge:   backsOff,
		child: func(k *testChild) {
			fmt.Print("Welcome\n\x1b[31mError:\x1b[0m API_KEY is missing\nBye\n")
			os.Exit(1)
		},
		set: fewRestarts, test: neverReady("exit status 1", ", stdout: Error: API_KEY is missing"),
	},
	{
		mode: "exits-in-handshake", does: "reads `initialize` and exits instead of answering",
		caller:   "`unavailable` (`ran: no`), with the reason",
		operator: "`failed`, with the exit status and the line of its output that most likely says why",
		bridge:   backsOff,
		child:    func(k *testChild) { k.next(); fmt.Fprintln(os.Stderr, "what is initialize?"); os.Exit(7) },
		set:      fewRestarts, test: neverReady("exit status 7", "what is initialize?"),
	},
	{
		mode: "no-such-program", does: "cannot be started: the manifest's command does not exist",
		caller:   "`unavailable` (`ran: no`), with the reason",
		operator: "`failed`: `starting \"./no-such-program\": …`",
		bridge:   "tries it once, again with each reload, and once every 5 min",
		manifest: "[capabilities]\ntools = [\"echo\"]\n[transport]\ntype = \"stdio\"\ncommand = \"./no-such-program\"\n",
		test: func(h *host) {
			h.waitForState(heartbeat.Failed, "starting", "no-such-program", "no such file")
			if n := h.entry().State.Instances[0].Restarts; n != 0 {
				h.Errorf("it was started %d times more", n)
			}
			_, err := h.client.CallExt(h.Context(), h.id, "tools/echo", json.RawMessage("{}"))
			h.wantError(err, rpc.CodeUnavailable, rpc.RanNo, "failed", "no-such-program")
		},
	},
	{
		mode: "silent-in-handshake", does: "never answers `initialize`",
		caller:   "`unavailable` (`ran: no`) with state and reason, at the latest when the call's own time is over",
		operator: "`failed`: `it did not answer initialize within 30s`",
		bridge:   "SIGTERM after 30 s or its `handshake_timeout`, SIGKILL a second later; " + backsOff,
		child:    func(k *testChild) { hang() },
		set:      func(s *config.Supervision) { s.MaxRestarts, s.HandshakeTimeout = 2, 200*time.Millisecond },
		test:     neverReady("did not answer initialize within 200ms"),
	},
	{
		mode: "garbage-in-handshake", does: "answers `initialize` with an array",
		caller:   "`unavailable` (`ran: no`), with the reason",
		operator: "`failed`: `handshake: the result of initialize is not an object`",
		bridge:   "stops it; " + backsOff,
		child:    func(k *testChild) { k.serve(only("initialize", func(m message) { k.result(m, "[1,2]") })) },
		set:      fewRestarts, test: neverReady("handshake: the result of initialize is not an object"),
	},
	{
		mode: "error-in-handshake", does: "answers `initialize` with an error",
		caller:   "`unavailable` (`ran: no`), with the reason",
		operator: "`failed`: `handshake: initialize: licence expired`",
		bridge:   "stops it; " + backsOff,
		child: func(k *testChild) {
			k.serve(only("initialize", func(m message) { k.fail(m, -32000, "licence expired") }))
		},
		set: fewRestarts, test: neverReady("handshake: initialize: licence expired"),
	},
	{
		mode: "wrong-dialect", does: "uses the native dialect, although its manifest declares `mcp`",
		caller:   "`unavailable` (`ran: no`), with the reason",
		operator: "`failed`: `the manifest sets dialect \"mcp\", but the response to initialize is in dialect \"ext\"`",
		bridge:   "stops it; " + backsOff,
		mcp:      true,
		child:    func(k *testChild) { k.mcp = false; k.serve(nil) },
		set:      fewRestarts, test: neverReady(`sets dialect "mcp"`, `is in dialect "ext"`),
	},
	{
		mode: "modern-mcp-only", does: "is an MCP server that supports only version 2026-07-28, which has no handshake, and answers -32022",
		caller:   "`unavailable` (`ran: no`), with the reason",
		operator: "`failed`: `the server speaks only MCP without a handshake (2026-07-28 and later), which this bridge does not support`",
		bridge:   "stops it; " + backsOff,
		mcp:      true,
		child: func(k *testChild) {
			k.serve(only("initialize", func(m message) {
				k.write(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32022,"message":"Unsupported protocol version","data":{"supported":["2026-07-28"],"requested":"2025-11-25"}}}` + "\n")
			}))
		},
		set: fewRestarts, test: neverReady("2026-07-28 and later"),
	},
}
