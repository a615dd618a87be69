package remote

import (
	"encoding/json"
	"fmt"
	"net/http"
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

func TestHandshake(t *testing.T) { synctest.Test(t, handshakeOverHTTP) }

func handshakeOverHTTP(t *testing.T) {
	m := newPipedMCP(t)
	c := m.connect(Config{})
	if got, err := c.Call(soon(t), "tools/list", nil); err != nil || string(got) != `{"ok":true}` {
		t.Fatalf("%s, %v", got, err)
	}
	c.end(t)

	first := m.requests("initialize")[0]
	if h := first.HTTP.Header; h.Get("Accept") != bothKinds || h["Mcp-Session-Id"] != nil || h["Mcp-Protocol-Version"] != nil ||
		h.Get("Authorization") != "Bearer "+secret || string(first.Params) != hello {
		t.Errorf("initialize: %v %s", h, first.Params)
	}
	for _, method := range []string{initialized, "tools/list"} {
		h := m.requests(method)[0].HTTP.Header
		if h.Get("Accept") != bothKinds || h.Get("Mcp-Session-Id") != "session-1" || h.Get("Mcp-Protocol-Version") != "2025-06-18" {
			t.Errorf("%s: %v", method, h)
		}
	}
	m.awaitDeleted("session-1")
}

// TestOrder: calls after notifications/initialized are not sent before it is accepted: some servers would refuse them.
func TestOrder(t *testing.T) {
	var mu sync.Mutex
	open := false
	srv := serve(t, func(w http.ResponseWriter, r *request) {
		switch r.Method {
		case "initialize":
			reply(w, r.ID, `{"protocolVersion":"2025-03-26"}`)
		case initialized:
			// a slow server
			time.Sleep(100 * time.Millisecond)
			mu.Lock()
			open = true
			mu.Unlock()
			w.WriteHeader(http.StatusAccepted)
		case "tools/list":
			mu.Lock()
			defer mu.Unlock()
			reply(w, r.ID, fmt.Sprint(open))
		}
	})
	c := start(t, Config{URL: srv.URL})
	handshake(t, c)
	if got, err := c.Call(soon(t), "tools/list", nil); err != nil || string(got) != "true" {
		t.Errorf("%s, %v", got, err)
	}
}

func TestDialects(t *testing.T) {
	for _, tt := range []struct {
		dialect manifest.Dialect
		result  string
		accept  string // of the requests after initialize
	}{
		{manifest.Auto, `{"protocolVersion":"2025-03-26"}`, bothKinds},
		{manifest.Auto, `{"server_version":"1","tools":[]}`, jsonOnly},
		{manifest.Auto, `{"protocolVersion":7}`, jsonOnly},
		{"", `{"server_version":"1"}`, jsonOnly},
		{manifest.MCP, `{"protocolVersion":"2025-03-26"}`, bothKinds},
		{manifest.MCP, `{"server_version":"1"}`, bothKinds},
		{manifest.Ext, `{"protocolVersion":"2025-03-26"}`, jsonOnly},
	} {
		var mu sync.Mutex
		accept := map[string]string{}
		srv := serve(t, func(w http.ResponseWriter, r *request) {
			mu.Lock()
			defer mu.Unlock()
			accept[r.HTTP.Method+r.Method] = r.HTTP.Header.Get("Accept")
			w.Header().Set("Mcp-Session-Id", "s")
			if r.Method == "initialize" {
				reply(w, r.ID, tt.result)
				return
			}
			if got := r.HTTP.Header.Get("Mcp-Session-Id") != ""; got != (tt.accept == bothKinds) {
				t.Errorf("%+v: session sent: %v", tt, got)
			}
			reply(w, r.ID, "1")
		})
		c := start(t, Config{URL: srv.URL, Dialect: tt.dialect})
		for _, method := range []string{"initialize", "x"} {
			if _, err := c.Call(soon(t), method, json.RawMessage("{}")); err != nil {
				t.Error(err)
			}
		}
		c.end(t)
		if tt.accept == bothKinds { // the client waits two seconds for the server to receive it
			eventually(t, "the session is deleted", func() bool { mu.Lock(); defer mu.Unlock(); _, ok := accept["DELETE"]; return ok })
		}
		mu.Lock()
		first := bothKinds
		if tt.dialect == manifest.Ext {
			first = jsonOnly
		}
		if _, deleted := accept["DELETE"]; accept["POSTinitialize"] != first || accept["POSTx"] != tt.accept || deleted != (tt.accept == bothKinds) {
			t.Errorf("%+v: %v", tt, accept)
		}
		mu.Unlock()
	}
}

// TestEventAnswer: the answer to a call arrives on a stream after other messages of the server, and before one more. It
// runs in a bubble because the client waits only drainTimeout for that one.
func TestEventAnswer(t *testing.T) { synctest.Test(t, eventAnswer) }

func eventAnswer(t *testing.T) {
	const result = `{"content":[{"type":"new","n":9007199254740993}], "x":1e400}`
	m := newPipedMCP(t)
	m.call = func(w http.ResponseWriter, r *request) {
		send := events(w)
		send(": hello\n\nid: 1\ndata:\n\n")
		send("event: endpoint\ndata: /old\n\n")
		send("data: garbage\n\n")
		send("data: {}\n\n")
		send("data: {\"type\":\"heartbeat\"}\n\n")
		send("event: message\nid: 2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\n")
		send("data: \"params\":{\"progressToken\":1,\"progress\":0.5}}\n\n")
		send("data: {\"jsonrpc\":\"2.0\",\"id\":\"p\",\"method\":\"ping\"}\r\n\r\n")
		send("data: {\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"roots/list\"}\n\n")
		send("data: {\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"roots/list\"}\n\n")
		send("data: {\"jsonrpc\":\"2.0\",\"id\":777,\"result\":\"somebody's\"}\n\n")
		send("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", r.ID, result)
		send("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":\"again\"}\n\n", r.ID)
		send("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/late\"}\n\n")
	}
	var notes notifications
	c := m.connect(Config{OnNotification: notes.add})
	got, err := c.Call(soon(t), "tools/call", nil)
	if err != nil || string(got) != result {
		t.Fatalf("%s, %v", got, err)
	}
	eventually(t, "the notification after the answer", func() bool { return notes.has("notifications/late") })
	if got := notes.list(); !slices.Equal(got, []string{"notifications/progress {\"progressToken\":1,\"progress\":0.5}", "notifications/late"}) {
		t.Errorf("notifications: %q", got)
	}
	var pong, refusal *request
	eventually(t, "answers to the server's requests", func() bool {
		for _, r := range m.requests("") {
			switch string(r.ID) {
			case `"p"`:
				pong = r
			case "9":
				refusal = r
			}
		}
		return pong != nil && refusal != nil
	})
	if string(pong.Result) != "{}" || pong.HTTP.Header.Get("Mcp-Session-Id") != "session-1" {
		t.Errorf("to ping: %s", pong.Result)
	}
	if !strings.Contains(string(refusal.Error), "-32601") {
		t.Errorf("to roots/list: %s", refusal.Error)
	}
}

func TestEventStreamEndsWithoutAnswer(t *testing.T) {
	m := newMCP(t)
	m.call = func(w http.ResponseWriter, r *request) {
		events(w)("data: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\n")
	}
	c := m.connect(Config{})
	_, err := c.Call(soon(t), "x", nil)
	fails(t, err, rpc.CodeExited, rpc.RanMaybe, "the server closed it")
}

// TestNotChunkedToItsEnd: an answer is accepted although its last line has no end.
func TestNotChunkedToItsEnd(t *testing.T) {
	m := newMCP(t)
	m.call = func(w http.ResponseWriter, r *request) { events(w)("data: {\"id\":%s,\"result\":5}", r.ID) }
	c := m.connect(Config{})
	if got, err := c.Call(soon(t), "x", nil); err != nil || string(got) != "5" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestResume interrupts the stream of an answer, once by closing the connection and once by ending the response, as a
// server does that wants to be polled; and then the resumed stream too.
func TestResume(t *testing.T) {
	t.Parallel()
	for _, rude := range []bool{false, true} {
		m := newMCP(t)
		var mu sync.Mutex
		var id json.RawMessage
		var asked []string
		m.call = func(w http.ResponseWriter, r *request) {
			mu.Lock()
			id = r.ID
			mu.Unlock()
			events(w)("retry: 100\nid: a-1\ndata: \n\nid: a-2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"one\"}\n\nid: a-3\ndata: {\"jso")
			if rude {
				panic(http.ErrAbortHandler)
			}
		}
		m.get = func(w http.ResponseWriter, r *http.Request) {
			last := r.Header.Get("Last-Event-ID")
			mu.Lock()
			defer mu.Unlock()
			switch asked = append(asked, last); {
			case last == "":
				w.WriteHeader(http.StatusMethodNotAllowed)
			case len(asked) < 4:
				w.WriteHeader(http.StatusServiceUnavailable)
			case last == "a-2":
				events(w)("id: a-3\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"two\"}\n\n")
			default:
				events(w)("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":3}\n\n", id)
			}
		}
		var notes notifications
		c := m.connect(Config{OnNotification: notes.add})
		eventually(t, "the first GET", func() bool { mu.Lock(); defer mu.Unlock(); return len(asked) == 1 })
		if got, err := c.Call(soon(t), "x", nil); err != nil || string(got) != "3" {
			t.Errorf("rude %v: %s, %v", rude, got, err)
		}
		if got := notes.list(); !slices.Equal(got, []string{"one", "two"}) {
			t.Errorf("rude %v: %q", rude, got)
		}
		mu.Lock()
		if want := []string{"", "a-2", "a-2", "a-2", "a-3"}; !slices.Equal(asked, want) {
			t.Errorf("rude %v: asked for %q, want %q", rude, asked, want)
		}
		mu.Unlock()
		c.end(t)
	}
}

// TestResumeGivesUp uses a server that numbers its events but does not store them. It runs in a synctest bubble, since it
// checks time limits, which a busy machine would not meet.
func TestResumeGivesUp(t *testing.T) {
	for name, tt := range map[string]struct {
		get  func(w http.ResponseWriter)
		text string
		asks int
	}{
		"not offered":  {func(w http.ResponseWriter) { w.WriteHeader(405) }, "offers no stream", 1},
		"session lost": {func(w http.ResponseWriter) { w.WriteHeader(404) }, "has lost the session", 1},
		"always empty": {func(w http.ResponseWriter) { events(w) }, "the server closed it", maxResumes},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newPipedMCP(t)
				m.call = func(w http.ResponseWriter, r *request) { events(w)("retry: 1\nid: 1\ndata:\n\n") }
				var asked atomic.Int64
				m.get = func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Last-Event-ID") == "" {
						w.WriteHeader(http.StatusMethodNotAllowed)
						return
					}
					asked.Add(1)
					tt.get(w)
				}
				c := m.connect(Config{})
				began := time.Now()
				_, err := c.Call(soon(t), "x", nil)
				fails(t, err, rpc.CodeExited, rpc.RanMaybe, tt.text, "the server closed it")
				if n := asked.Load(); n != int64(tt.asks) {
					t.Errorf("it was asked %d times, want %d", n, tt.asks)
				}
				if took, want := time.Since(began), time.Duration(tt.asks)*minRetry; took != want {
					t.Errorf("it took %s, want %s", took, want)
				}
				c.end(t)
			})
		})
	}
}

// TestTimeoutSendsCancelled: the server is notified of a time-out, since in MCP a closed connection is no cancellation.
func TestTimeoutSendsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the request has to be sent before its deadline
		m := newPipedMCP(t)
		m.call = func(w http.ResponseWriter, r *request) { <-r.HTTP.Context().Done() }
		c := m.connect(Config{})
		sink := make(ended, 1)
		for _, method := range []string{"ping", "x"} { // a ping is not cancelled
			c.Start(&jsonrpc.Exchange{Method: method, Sink: sink, Deadline: time.Now().Add(50 * time.Millisecond)})
			<-sink
			synctest.Wait()
		}
		eventually(t, "notifications/cancelled", func() bool { return len(m.requests(cancelled)) == 1 })
		id := m.requests("x")[0].ID
		if got := string(m.requests(cancelled)[0].Params); got != `{"requestId":`+string(id)+`,"reason":"timeout"}` {
			t.Errorf("told %s, of request %s", got, id)
		}
		c.end(t)
	})
}

// TestFlood: a call is answered after more requests of the server than the Conn answers.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the time for 2,000 requests depends on the machine
		m := newPipedMCP(t)
		m.call = func(w http.ResponseWriter, r *request) {
			events(w)
			for i := range 2000 {
				fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"roots/list%s\"}\n\n", i, strings.Repeat("x", 10_000))
			}
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":1}\n\n", r.ID)
		}
		c := m.connect(Config{})
		if _, err := c.Call(soon(t), "x", nil); err != nil {
			t.Error(err)
		}
		eventually(t, "some answers", func() bool { return len(m.requests("")) > 10 })
		for _, r := range m.requests("") {
			if text := string(r.Error); r.Error != nil && (len(text) > 500 || !strings.Contains(text, "is not offered")) {
				t.Errorf("an answer is %.600s", text)
			}
		}
		c.end(t)
	})
}

// TestAnswerOverAnotherStream: an answer may arrive on the stream of the server's own messages.
func TestAnswerOverAnotherStream(t *testing.T) {
	m := newMCP(t)
	ids, gone := make(chan json.RawMessage, 1), make(chan struct{})
	m.call = func(w http.ResponseWriter, r *request) {
		ids <- r.ID
		<-r.HTTP.Context().Done()
		close(gone)
	}
	m.get = func(w http.ResponseWriter, r *http.Request) {
		send := events(w)
		send("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":4}\n\n", <-ids)
		<-r.Context().Done()
	}
	c := m.connect(Config{})
	if got, err := c.Call(soon(t), "x", nil); err != nil || string(got) != "4" {
		t.Errorf("%s, %v", got, err)
	}
	<-gone
}
