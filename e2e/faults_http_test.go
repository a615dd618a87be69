package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// webServer is an HTTP server that can change its behaviour, and can be stopped and started again at the same address.
type webServer struct {
	url    string
	answer atomic.Pointer[http.HandlerFunc]
	addr   string
	server *http.Server
	ended  chan struct{}
}

func (w *webServer) run(t testing.TB, answer http.HandlerFunc) {
	t.Helper()
	if answer == nil {
		return
	}
	w.answer.Store(&answer)
	w.addr = freeport.Addr(t) // not one that the system gives to other programs while the server is stopped
	w.start(t)
	t.Cleanup(w.stop)
}

func (w *webServer) start(t testing.TB) {
	t.Helper()
	var l net.Listener
	// A child that another test starts has a copy of every descriptor from its fork to its exec. So the port can be in
	// use for some milliseconds after a stop.
	natstest.Eventually(t, "the HTTP server listens on "+w.addr, func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", w.addr)
		return err == nil
	})
	w.url = "http://" + w.addr
	w.server = &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { (*w.answer.Load())(rw, r) })}
	w.ended = make(chan struct{})
	go func() { // ends with stop
		defer close(w.ended)
		w.server.Serve(l)
	}()
}

func (w *webServer) stop() {
	w.server.Close()
	<-w.ended
}

// native behaves like a correct native extension over HTTP: it answers initialize, ping, and echo.
func native(w http.ResponseWriter, r *http.Request) {
	var m message
	body, _ := io.ReadAll(r.Body)
	if json.Unmarshal(body, &m) != nil {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	var out strings.Builder
	k := &testChild{out: &out, offer: func() string { return toolList(false, "echo") }}
	k.handle(m, nil)
	w.Header().Set("Content-Type", "application/json")
	if out.Len() == 0 {
		w.WriteHeader(http.StatusAccepted)
	}
	io.WriteString(w, out.String())
}

// sessions is an MCP server over streamable HTTP that keeps sessions until a test deletes them.
type sessions struct {
	mu      sync.Mutex
	known   map[string]bool
	n       int
	version string // of the server; "": version 1, with only the tool echo

	calls atomic.Int64 // counted by some tests
}

func (s *sessions) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = map[string]bool{}
}

// upgrade replaces the server by another version, which has one more tool.
func (s *sessions) upgrade(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.version = map[string]bool{}, version
}

func (s *sessions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var m message
	body, _ := io.ReadAll(r.Body)
	if json.Unmarshal(body, &m) != nil {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	if m.Method == "initialize" {
		s.n++
		id := fmt.Sprintf("session-%d", s.n)
		s.known[id] = true
		w.Header().Set("Mcp-Session-Id", id)
	} else if !s.known[r.Header.Get("Mcp-Session-Id")] {
		s.mu.Unlock()
		http.Error(w, "no such session", http.StatusNotFound)
		return
	}
	version, tools := s.version, []string{"echo"}
	s.mu.Unlock()
	var out strings.Builder
	k := &testChild{out: &out, mcp: true, offer: func() string { return toolList(true, tools...) }}
	do := map[string]func(message){}
	if version != "" {
		tools = append(tools, "new")
		do["initialize"] = func(m message) {
			k.result(m, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"test-child","version":"`+version+`"}}`)
		}
	}
	k.handle(m, do)
	if out.Len() == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "event: message\ndata: %s\n", out.String())
}

// overHTTP returns the part of a manifest that declares the HTTP transport.
func overHTTP(dialect string) string {
	return "[capabilities]\ntools = [\"echo\"]\n[transport]\ntype = \"http\"\nurl = \"$URL/rpc\"\ndialect = \"" + dialect +
		"\"\nheaders = { Authorization = \"Bearer ${FAULT_TOKEN}\" }\n"
}

// status answers every request with the same status and text.
func status(code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(code)
		io.WriteString(w, text)
	}
}

// refusedWith tests an endpoint that answers initialize with an HTTP error.
func refusedWith(reasons ...string) func(h *host) {
	return func(h *host) {
		e := h.waitForState(heartbeat.Failed, append(reasons, "gave up after 2 restarts")...)
		_, err := h.call("echo", "{}")
		if err == nil {
			h.Error("a call succeeded")
		}
		h.eventually("the bridge tries again", func() bool { return h.entry().State.Instances[0].Restarts > 4 })
		if n := strings.Count(h.log.String(), "level=ERROR"); n != 2 { // did not start, failed
			h.Errorf("there are %d errors in the log", n)
		}
		if strings.Contains(e.State.Reason+h.log.String()+fmt.Sprint(err), hostSecret) {
			h.Errorf("the secret is in the reason, the log or the error: %s", e.State.Reason)
		}
	}
}

// httpFaults are extensions with the HTTP transport.
var httpFaults = []fault{
	{
		mode: "http-works", does: "works, over HTTP (for comparison)",
		caller: "the answer, every byte unchanged", operator: "`ready`", bridge: "sends one POST for each call; replaces `${VAR}` and `${file:PATH}` in the headers",
		manifest: strings.Replace(overHTTP("ext"), " }\n", ", X-Key = \"${file:key}\" }\n", 1),
		web: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+hostSecret || r.Header.Get("X-Key") != fileKey {
				status(http.StatusUnauthorized, "bad credentials")(w, r)
				return
			}
			native(w, r)
		},
		test: func(h *host) {
			h.waitReady()
			if got, err := h.call("echo", exact); err != nil || got != exact {
				h.Errorf("the answer is %s, %v", got, err)
			}
		},
	},
	{
		mode: "http-refuses", does: "answers 401, and quotes the header that it received",
		caller: "`unavailable` with the reason", operator: "`failed`: `… answered 401 Unauthorized: …; are the headers of [transport] right?`, without any secret",
		bridge:   "tries again with backoff; in the state `failed` once a minute",
		manifest: overHTTP("auto"), set: fewRestarts,
		web: func(w http.ResponseWriter, r *http.Request) {
			status(http.StatusUnauthorized, "bad token "+r.Header.Get("Authorization"))(w, r)
		},
		test: refusedWith("401 Unauthorized", "are the headers of [transport] right?"),
	},
	{
		mode: "http-forbids", does: "answers 403",
		caller: "`unavailable` with the reason", operator: "`failed`: `… answered 403 Forbidden: …; are the headers of [transport] right?`",
		bridge:   "tries again with backoff; in the state `failed` once a minute",
		manifest: overHTTP("auto"), set: fewRestarts,
		web:  status(http.StatusForbidden, "not from here"),
		test: refusedWith("403 Forbidden", "not from here", "are the headers of [transport] right?"),
	},
	{
		mode: "http-refuses-calls", does: "answers `initialize` and `ping`, but every call with 401",
		caller: "`unavailable` (`ran: no`) with the server's text, at once and without a retry", operator: "`ready`, with the reason `a call was refused: … answered 401 Unauthorized: …; are the headers of [transport] right?`; the first call that is answered more than half a minute later removes it",
		bridge:   "passes the refusal on",
		manifest: overHTTP("ext"), web: refusesCalls.ServeHTTP,
		test: func(h *host) {
			h.waitReady()
			before := refusesCalls.calls.Load()
			_, err := h.call("echo", "{}")
			h.wantError(err, rpc.CodeUnavailable, rpc.RanNo, "401 Unauthorized: the token has expired", "are the headers of [transport] right?", `"state":"failed"`)
			if n := refusesCalls.calls.Load() - before; n != 1 {
				h.Errorf("the server got %d requests", n)
			}
			h.waitForState(heartbeat.Ready, "a call was refused", "401 Unauthorized: the token has expired", "are the headers of [transport] right?")
		},
	},
	{
		mode: "http-limits-rate", does: "answers 429",
		caller: "`unavailable` with the reason", operator: "`failed`: `… answered 429 Too Many Requests: …`",
		bridge:   "tries again with backoff; in the state `failed` once a minute",
		manifest: overHTTP("mcp"), set: fewRestarts,
		web:  status(http.StatusTooManyRequests, "slow down"),
		test: refusedWith("429 Too Many Requests", "slow down"),
	},
	{
		mode: "http-is-broken", does: "answers 503 (500, 502 …)",
		caller: "`unavailable` with the reason", operator: "`failed`: `… answered 503 Service Unavailable: …`",
		bridge:   "tries again with backoff; in the state `failed` once a minute",
		manifest: overHTTP("mcp"), set: fewRestarts,
		web:  status(http.StatusServiceUnavailable, "down for maintenance"),
		test: refusedWith("503 Service Unavailable", "down for maintenance"),
	},
	{
		mode: "http-redirects", does: "redirects to another host",
		caller: "`unavailable` with the reason", operator: "`failed`: `… answered 307 Temporary Redirect to …, which is not followed: it leads to another host`", bridge: "does not follow the redirect: the headers contain secrets",
		manifest: overHTTP("ext"), set: fewRestarts,
		web: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://localhost:1/rpc", http.StatusTemporaryRedirect)
		},
		test: refusedWith("307 Temporary Redirect", "not followed"),
	},
	{
		mode: "http-own-error", does: "has a tool that runs and then answers with -32601",
		caller: "`method_not_found`, the extension's own", operator: "nothing", bridge: "passes the error on, and does not repeat the call",
		manifest: strings.Replace(overHTTP("mcp"), `["echo"]`, `["echo", "act"]`, 1), web: actsOverHTTP.ServeHTTP,
		test: func(h *host) {
			h.waitReady()
			before := actsOverHTTP.runs.Load()
			for n, call := range []func() error{
				func() error { _, err := h.call("act", "{}"); return err },
				func() error { _, err := h.request("tools/act", "{}"); return err },
				func() error { _, err := h.request("tools/call", `{"name":"act"}`); return err },
			} {
				if e := rpc.AsError(call()); e == nil || e.Code != rpc.CodeMethodNotFound || e.Message != "its own words" || e.Data != nil {
					h.Errorf("the error is %+v", e)
				}
				if runs := actsOverHTTP.runs.Load() - before; runs != int64(n+1) {
					h.Errorf("%d calls ran %d times", n+1, runs)
				}
			}
		},
	},
	{
		mode: "http-stops-and-restarts", does: "stops between two calls, and starts again",
		caller: "`unavailable` (`ran: no`), then answers", operator: "`restarting`: `the health check failed: … connection refused`, then `ready`",
		bridge:   "checks the connection as soon as a call fails, otherwise as in the next row; then repeats the handshake with backoff",
		manifest: overHTTP("ext"), web: native,
		set: func(s *config.Supervision) { s.MaxRestarts = 1000 },
		test: func(h *host) {
			h.waitReady()
			h.web.stop()
			_, err := h.request("tools/echo", "{}")
			if rpc.AsError(err).Code == rpc.CodeExited { // it was written to the old connection before that was found closed
				h.wantError(err, rpc.CodeExited, rpc.RanMaybe, "ended before the answer")
			} else {
				h.wantError(err, rpc.CodeUnavailable, rpc.RanNo, "cannot be reached")
			}
			h.waitForState(heartbeat.Restarting, "cannot be reached")
			h.web.start(h)
			h.waitForState(heartbeat.Ready)
			h.waitForSuccess()
		},
	},
	{
		mode: "http-stops-while-idle", does: "stops while there are no calls",
		caller: "`unavailable` with the reason, at the latest when the call's own time is over", operator: "`restarting` within 6 s, later if its pings take more than 0.3 s", bridge: "checks the connection every 3 s, or after ten times what the last ping took if that is longer; then repeats the handshake with backoff",
		manifest: overHTTP("ext"), web: native,
		test: func(h *host) {
			h.waitReady()
			h.web.stop()
			h.within(8*time.Second, "the detection", func() { h.waitForState(heartbeat.Restarting, "cannot be reached") })
			h.web.start(h)
		},
	},
	{
		mode: "http-hangs", does: "accepts requests and does not answer them",
		caller: "`timeout` (`ran: maybe`), then `unavailable`", operator: "`restarting`: `the health check failed: …`; the breaker's name is `ext:http:<id>`",
		bridge:   "sends a ping when a call is overdue; treats the server as gone if there is no answer within 3 s, or within twice what `initialize` took if that is longer, but at most 15 s",
		manifest: overHTTP("ext"), web: native,
		set: func(s *config.Supervision) {
			s.CallTimeout, s.HandshakeTimeout, s.MaxRestarts = 2*time.Second, 300*time.Millisecond, 1000
		},
		test: func(h *host) {
			h.waitReady()
			waits := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			})
			h.web.answer.Store(&waits)
			began := time.Now()
			var wg sync.WaitGroup
			errs := make([]error, 5)
			for i := range errs {
				wg.Go(func() { _, errs[i] = h.request("tools/echo", "{}") }) // ends with its timeout
			}
			wg.Wait()
			for _, err := range errs {
				h.wantError(err, rpc.CodeTimeout, rpc.RanMaybe)
			}
			_, err := h.request("tools/echo", "{}")
			if time.Since(began) > 5*time.Second && errors.Is(err, rpc.CodeUnavailable) {
				h.Logf("the calls took so long that the server was treated as gone: %v", err)
			} else {
				h.wantError(err, rpc.CodeBreakerOpen, rpc.RanNo, "ext:http:http-hangs")
			}
			h.waitForState(heartbeat.Restarting)
			well := http.HandlerFunc(native)
			h.web.answer.Store(&well)
			h.waitForState(heartbeat.Ready)
			h.waitForSuccess()
		},
	},
	{
		mode: "http-loses-session", does: "is an MCP server that has lost its sessions",
		caller: "nothing: the call is answered", operator: "`the server had lost the session; it was opened again` in the log",
		bridge:   "opens another session, reads version and tools again, and sends the call again: it did not run",
		manifest: overHTTP("mcp"), web: forgetful.ServeHTTP,
		test: func(h *host) {
			h.waitReady()
			h.callSucceeds()
			for range 2 { // and once below: after a fourth loss within seconds no session is opened again
				forgetful.forget()
				h.callSucceeds()
			}
			if r := h.entry().State.Instances[0].Restarts; r != 0 {
				h.Errorf("it was restarted %d times", r)
			}
			forgetful.upgrade("2")
			h.callSucceeds()
			h.waitForTools("echo", "new")
			// A reading of the lists that had begun before the upgrade ends with the new tools and the old version.
			h.eventually("initialize is answered with the new version", func() bool {
				got, err := h.request("initialize", "{}")
				return err == nil && strings.Contains(string(got), `"version":"2"`)
			})
		},
	},
	{
		mode: "http-endless-answer", does: "answers with a body that does not end",
		caller: "`too_large` at `max_result`", operator: "nothing", bridge: "stops reading at `max_result`",
		manifest: overHTTP("ext"), set: func(s *config.Supervision) { s.MaxResult = 1 << 20 },
		web: func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if !strings.Contains(string(body), "tools/echo") {
				r.Body = io.NopCloser(strings.NewReader(string(body)))
				native(w, r)
				return
			}
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, megabyte); err != nil {
					return
				}
			}
		},
		test: func(h *host) {
			h.waitReady()
			_, err := h.request("tools/echo", "{}")
			h.wantError(err, rpc.CodeTooLarge, rpc.RanMaybe)
		},
	},
}

// httpActor is an MCP server over HTTP with the tool act, which counts its runs and answers with the error -32601.
type httpActor struct{ runs atomic.Int64 }

func (a *httpActor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m message
	body, _ := io.ReadAll(r.Body)
	if json.Unmarshal(body, &m) != nil {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	var out strings.Builder
	k := &testChild{out: &out, mcp: true, offer: func() string { return toolList(true, "echo", "act") }}
	k.handle(m, only("act", func(m message) {
		a.runs.Add(1)
		k.fail(m, -32601, "its own words")
	}))
	w.Header().Set("Content-Type", "application/json")
	if out.Len() == 0 {
		w.WriteHeader(http.StatusAccepted)
	}
	io.WriteString(w, out.String())
}

var actsOverHTTP = new(httpActor)

// callRefuser is a native extension over HTTP that answers every call with 401.
type callRefuser struct{ calls atomic.Int64 }

func (c *callRefuser) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if strings.Contains(string(body), `"tools/`) {
		c.calls.Add(1)
		status(http.StatusUnauthorized, "the token has expired")(w, r)
		return
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	native(w, r)
}

var refusesCalls = new(callRefuser)

var forgetful = &sessions{known: map[string]bool{}}
