package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func loses(status int, body string) func(w http.ResponseWriter, r *request) {
	return func(w http.ResponseWriter, r *request) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// TestReopen restarts the server while its client runs, with all ways in which servers report a lost session.
func TestReopen(t *testing.T) {
	for name, lose := range map[string]func(w http.ResponseWriter, r *request){
		"404":            loses(404, ""),
		"404 of the SDK": loses(404, `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}`),
		"404 with the id": func(w http.ResponseWriter, r *request) {
			loses(404, `{"jsonrpc":"2.0","error":{"code":-32001,"message":"?"},"id":`+string(r.ID)+`}`)(w, r)
		},
		"400 everything": loses(400, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`),
		"400 of the SDK": loses(400, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}`),
		"400 as text":    loses(400, "Invalid session ID"),
		"401 of rmcp":    loses(401, "Unauthorized: Session not found"),
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { reopen(t, lose) }) })
	}
}

func reopen(t *testing.T, lose func(w http.ResponseWriter, r *request)) {
	m := newPipedMCP(t)
	m.lose = lose
	var notes notifications
	var introduced atomic.Pointer[string]
	c := m.connect(Config{OnNotification: notes.add, OnReopened: func(result json.RawMessage) {
		text := string(result)
		introduced.Store(&text)
	}})
	m.loseSessions()
	const n = 50
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			if _, err := c.Call(soon(t), "x", json.RawMessage(fmt.Sprintf(`{"i":%d}`, i))); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	hellos := m.requests("initialize")
	if len(hellos) != 2 || string(hellos[1].Params) != hello || hellos[1].HTTP.Header["Mcp-Session-Id"] != nil {
		t.Errorf("%d times initialize, the last with %s", len(hellos), hellos[len(hellos)-1].Params)
	}
	if got := m.requests(initialized); len(got) != 2 || got[1].HTTP.Header.Get("Mcp-Session-Id") != "session-2" {
		t.Errorf("%d times %s", len(got), initialized)
	}
	good := 0
	for _, r := range m.requests("x") {
		if r.HTTP.Header.Get("Mcp-Session-Id") == "session-2" {
			good++
		}
	}
	if good != n || len(m.requests("x")) > 2*n {
		t.Errorf("%d calls over the new session, of %d", good, len(m.requests("x")))
	}
	// It follows after the waiting calls have been released.
	eventually(t, "the notification", func() bool { return slices.Equal(notes.list(), []string{listChanged}) })
	if got := introduced.Load(); got == nil || !strings.Contains(*got, `"protocolVersion"`) {
		t.Error("OnReopened was not called with the result of the new handshake")
	}
	c.end(t)
	m.awaitDeleted("session-2")
}

// TestReopenWithoutInitialized uses a server that refuses notifications/initialized in each session.
func TestReopenWithoutInitialized(t *testing.T) {
	var sessions atomic.Int32
	srv := serve(t, func(w http.ResponseWriter, r *request) {
		switch id := r.HTTP.Header.Get("Mcp-Session-Id"); {
		case r.Method == "initialize":
			w.Header().Set("Mcp-Session-Id", fmt.Sprint(sessions.Add(1)))
			reply(w, r.ID, `{"protocolVersion":"2025-11-25"}`)
		case r.Method == "x" && id == "1":
			http.Error(w, "session?", http.StatusNotFound)
		case r.Method == "x":
			reply(w, r.ID, id)
		default:
			w.WriteHeader(http.StatusMethodNotAllowed)
		}
	})
	c := start(t, Config{URL: srv.URL, Dialect: manifest.MCP})
	handshake(t, c)
	if got, err := c.Call(soon(t), "x", nil); string(got) != "2" || err != nil || sessions.Load() != 2 {
		t.Errorf("%s, %v, %d sessions", got, err, sessions.Load())
	}
}

// TestNotLost covers refusals that do not mean that the session is lost.
func TestNotLost(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		body   string
		code   rpc.Code
	}{
		"404 about a method": {404, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no such method"}}`, -32601},
		"400 about params":   {400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"bad params"}}`, -32602},
		"401":                {401, "session expired, log in again", rpc.CodeUnavailable},
		"400 of the tool":    {400, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"session_id is required"}}`, -32602},
		"404 of a customer":  {404, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32004,"message":"customer not found"}}`, -32004},
		"400 of a browser":   {400, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"browser session closed"}}`, -32000},
		"404 of a resource":  {404, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32002,"message":"no such resource"}}`, -32002},
	} {
		m := newMCP(t)
		m.call = func(w http.ResponseWriter, r *request) {
			loses(tt.status, strings.Replace(tt.body, "ID", string(r.ID), 1))(w, r)
		}
		c := m.connect(Config{})
		_, err := c.Call(soon(t), "x", nil)
		if !errors.Is(err, tt.code) || len(m.requests("initialize")) != 1 || len(m.requests("x")) != 1 {
			t.Errorf("%s: %v, %d times initialize", name, err, len(m.requests("initialize")))
		}
		c.end(t)
	}
}

// TestLostTwice: a call is not sent a third time.
func TestLostTwice(t *testing.T) {
	m := newMCP(t)
	m.call = func(w http.ResponseWriter, r *request) { m.lose(w, r) }
	c := m.connect(Config{})
	_, err := c.Call(soon(t), "x", nil)
	fails(t, err, rpc.CodeUnavailable, rpc.RanNo, "404")
	if n := len(m.requests("x")); n != 2 {
		t.Errorf("sent %d times", n)
	}
}

// TestReopenLater: if the server temporarily cannot open a session, the call fails but Run continues.
func TestReopenLater(t *testing.T) {
	m := newMCP(t)
	m.beforeInit = func(w http.ResponseWriter, r *request, n int) bool {
		if n == 2 {
			w.Header().Set("Retry-After", "2")
			http.Error(w, "starting", http.StatusServiceUnavailable)
		}
		return n != 2
	}
	c := m.connect(Config{})
	m.loseSessions()
	_, err := c.Call(soon(t), "x", nil)
	d := fails(t, err, rpc.CodeUnavailable, rpc.RanNo, "cannot be opened again", "503 Service Unavailable: starting")
	if d.RetryAfterMS != 2000 {
		t.Errorf("retry after %d ms", d.RetryAfterMS)
	}
	if _, err := c.Call(soon(t), "x", nil); err != nil {
		t.Error(err)
	}
}

// TestReopenRefused: Run ends if the server refuses to open a session, since a new handshake is needed.
func TestReopenRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		respond func(w http.ResponseWriter, r *request)
		text    string
	}{
		"401": {func(w http.ResponseWriter, r *request) { http.Error(w, "who? "+secret, http.StatusUnauthorized) }, "401 Unauthorized: who? ["},
		"error": {func(w http.ResponseWriter, r *request) {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":1,"message":"never"}}`, r.ID)
		}, "never"},
		"not MCP": {func(w http.ResponseWriter, r *request) { reply(w, r.ID, `{"server_version":"2"}`) }, "no protocolVersion"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMCP(t)
			m.beforeInit = func(w http.ResponseWriter, r *request, n int) bool {
				if n > 1 {
					tt.respond(w, r)
				}
				return n == 1
			}
			c := m.connect(Config{})
			m.loseSessions()
			_, err := c.Call(soon(t), "x", nil)
			// It may fail with the error of the session or with that of the closed Conn.
			fails(t, err, rpc.AsError(err).Code, rpc.RanNo, "cannot be opened again", tt.text)
			<-c.done
			fails(t, c.err, rpc.CodeUnavailable, rpc.RanNo, tt.text)
			_, err = c.Call(soon(t), "x", nil)
			fails(t, err, rpc.CodeExited, rpc.RanNo, tt.text)
		})
	}
}

// TestReopenAfterCancelledCall cancels the call that found the session lost while another waits for the new session.
func TestReopenAfterCancelledCall(t *testing.T) {
	m := newMCP(t)
	opening, release := make(chan struct{}), make(chan struct{})
	m.beforeInit = func(w http.ResponseWriter, r *request, n int) bool {
		if n == 2 {
			close(opening)
			<-release
		}
		return true
	}
	c := m.connect(Config{})
	m.loseSessions()
	first, second := make(ended, 1), make(ended, 1)
	x := &jsonrpc.Exchange{Method: "x", Sink: first}
	c.Start(x)
	<-opening
	c.Start(&jsonrpc.Exchange{Method: "y", Sink: second})
	id, _ := c.Cancel(x)
	r := <-first
	fails(t, r.Err, rpc.CodeCancelled, rpc.RanNo) // the server refused it
	if id != 0 {
		t.Errorf("id %d", id)
	}
	late := make(ended, 1)
	c.Start(&jsonrpc.Exchange{Method: "z", Sink: late, Deadline: time.Now().Add(30 * time.Millisecond)})
	r = <-late
	fails(t, r.Err, rpc.CodeTimeout, rpc.RanNo)
	close(release)
	r = <-second
	if _, err := r.Result(); err != nil {
		t.Error(err)
	}
}

// TestEndWhileReopening ends the client while many calls wait for another session. Each of them fails with the reason of
// the end, and did not run.
func TestEndWhileReopening(t *testing.T) {
	m := newMCP(t)
	opening, release := make(chan struct{}), make(chan struct{})
	m.beforeInit = func(_ http.ResponseWriter, _ *request, n int) bool {
		if n == 2 {
			close(opening)
			<-release
		}
		return true
	}
	c := m.connect(Config{})
	defer close(release)
	m.loseSessions()
	answers := make(ended, 100)
	for n := range cap(answers) {
		c.Start(&jsonrpc.Exchange{Method: "x", Sink: answers})
		if n == 0 {
			<-opening
		}
	}
	c.stop()
	for range cap(answers) {
		fails(t, (<-answers).Err, rpc.CodeExited, rpc.RanNo, "ended before the answer")
	}
}

// TestRestart stops the server and starts it again at the same address.
func TestRestart(t *testing.T) {
	m := newMCP(t)
	m.get = func(w http.ResponseWriter, r *http.Request) { events(w); <-r.Context().Done() }
	var notes notifications
	c := m.connect(Config{OnNotification: notes.add})
	if _, err := c.Call(soon(t), "x", nil); err != nil {
		t.Fatal(err)
	}
	m.srv.CloseClientConnections()
	address := m.srv.Listener.Addr().String()
	m.srv.Listener.Close()
	_, err := c.Call(soon(t), "x", nil)
	if !errors.Is(err, rpc.CodeUnavailable) && !errors.Is(err, rpc.CodeExited) {
		t.Errorf("got %v", err)
	}
	m.loseSessions()
	again := httptest.NewUnstartedServer(m)
	again.Listener.Close()
	eventually(t, "the address is free", func() bool { l, err := listen(address); again.Listener = l; return err == nil })
	again.Start()
	t.Cleanup(again.Close)
	if _, err := c.Call(soon(t), "x", nil); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	eventually(t, listChanged, func() bool { return notes.has(listChanged) })
	c.end(t) // before the server, which waits for its stream
}

// TestShortSessions uses two replicas that receive requests in turn, so that each session is lost immediately. The
// client must limit its retries.
func TestShortSessions(t *testing.T) { synctest.Test(t, shortSessions) }

func shortSessions(t *testing.T) {
	m := newPipedMCP(t)
	m.call = func(w http.ResponseWriter, r *request) { m.lose(w, r) }
	var c *runningConn
	var again sync.WaitGroup
	defer again.Wait()
	answered := make(chan struct{}) // closed after the first call, so that the end of Run does not answer it
	relist := func(method string, _ []byte) {
		again.Go(func() { // as a bridge does; ends with the call
			<-answered
			c.Call(soon(t), "tools/list", nil)
		})
	}
	starting := make(chan struct{})
	c = m.connect(Config{OnNotification: func(method string, params []byte) { <-starting; relist(method, params) }})
	close(starting)
	_, err := c.Call(soon(t), "x", nil)
	close(answered)
	fails(t, err, rpc.CodeUnavailable, rpc.RanNo, "404")
	<-c.done
	fails(t, c.err, rpc.CodeUnavailable, rpc.RanNo, "loses each session within 10s")
	if n := len(m.requests("initialize")); n != 1+maxShort {
		t.Errorf("%d times initialize", n)
	}
}

// TestStateless uses a server without sessions: its 404 does not mean that a session is lost.
func TestStateless(t *testing.T) {
	n := atomic.Int32{}
	srv := serve(t, func(w http.ResponseWriter, r *request) {
		switch r.Method {
		case "initialize":
			n.Add(1)
			reply(w, r.ID, `{"protocolVersion":"2025-11-25"}`)
		case "x":
			http.Error(w, "session?", http.StatusNotFound)
		default:
			w.WriteHeader(http.StatusMethodNotAllowed)
		}
	})
	c := start(t, Config{URL: srv.URL, Dialect: manifest.MCP})
	handshake(t, c)
	_, err := c.Call(soon(t), "x", nil)
	fails(t, err, rpc.CodeUnavailable, rpc.RanNo, "404")
	if n.Load() != 1 {
		t.Errorf("%d times initialize", n.Load())
	}
}
