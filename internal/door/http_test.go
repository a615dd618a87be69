package door

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/natstest"
)

// web is a Door that serves HTTP.
type web struct {
	t   *testing.T
	url string
	h   *httpServer
}

func (d *Door) web(t *testing.T, o HTTPOptions) *web {
	t.Helper()
	h := d.newHTTPServer(o)
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		close(h.drain)
		h.sessions.endAll()
		srv.Close()
	})
	return &web{t, srv.URL + "/mcp", h}
}

// answer is an HTTP answer.
type answer struct {
	status int
	header http.Header
	body   string
}

// header of a client of the legacy era; further headers replace these.
var legacyHeader = map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

func (w *web) do(method, path, body string, headers ...map[string]string) answer {
	w.t.Helper()
	r := w.request(w.t.Context(), method, path, body, headers...)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

func (w *web) request(ctx context.Context, method, path, body string, headers ...map[string]string) *http.Request {
	w.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, set := range append([]map[string]string{legacyHeader}, headers...) {
		for k, v := range set {
			switch {
			case k == "Host":
				r.Host = v
			case v == "":
				r.Header.Del(k)
			default:
				r.Header.Set(k, v)
			}
		}
	}
	return r
}

// begin begins a session of the legacy era and returns its headers.
func (w *web) begin(version string, headers ...map[string]string) map[string]string {
	w.t.Helper()
	a := w.do("POST", "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, headers...)
	id := a.header.Get("Mcp-Session-Id")
	if a.status != 200 || id == "" {
		w.t.Fatalf("initialize: %+v", a)
	}
	out := map[string]string{"Mcp-Session-Id": id, "MCP-Protocol-Version": version}
	for _, set := range headers {
		for k, v := range set {
			out[k] = v
		}
	}
	return out
}

func modernHeader(method, name string) map[string]string {
	h := map[string]string{"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
	if name != "" {
		h["Mcp-Name"] = name
	}
	return h
}

// stream opens a stream of events and returns a function that reads the next event; it is "" at the end.
func (w *web) stream(method, body string, headers ...map[string]string) (next func() (id, data string), stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	res, err := http.DefaultClient.Do(w.request(ctx, method, "", body, headers...))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { cancel(); res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" {
		text, _ := io.ReadAll(res.Body)
		w.t.Fatalf("no stream: %d %v %s", res.StatusCode, res.Header, text)
	}
	r := bufio.NewReader(res.Body)
	return func() (id, data string) {
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return id, data
			}
			line = strings.TrimSuffix(line, "\n")
			switch {
			case line == "" && (data != "" || id != ""):
				return id, data
			case strings.HasPrefix(line, "id: "):
				id = line[4:]
			case strings.HasPrefix(line, "data: "):
				data = line[6:]
			}
		}
	}, cancel
}

const (
	pingLine   = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	modernList = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + modernMeta + `}}`
)

// TestHTTPChecks tries requests that differ in one thing from one that is accepted.
func TestHTTPChecks(t *testing.T) {
	_, d := helloBed(t)
	w := d.web(t, HTTPOptions{MaxBody: 1000, Hosts: []string{"tools.example.com"}})
	session := w.begin("2025-06-18")
	with := func(k, v string) map[string]string { return map[string]string{k: v} }
	long := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 1000) + `"}}`
	for _, tt := range []struct {
		name, method, path, body string
		headers                  []map[string]string
		status                   int
		text                     string
	}{
		{"legacy", "POST", "", pingLine, []map[string]string{session}, 200, `"result":{}`},
		{"slash at the end", "POST", "/", pingLine, []map[string]string{session}, 200, `"result":{}`},
		{"modern", "POST", "", modernList, []map[string]string{modernHeader("tools/list", "")}, 200, `"tools":[`},
		{"modern, only JSON", "POST", "", modernList, []map[string]string{modernHeader("tools/list", ""), with("Accept", "application/json")}, 200, `"tools":[`},
		{"modern, a subscription only as JSON", "POST", "", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{},` + modernMeta + `}}`,
			[]map[string]string{modernHeader(mcp.MethodListen, ""), with("Accept", "application/json")}, 406, "text/event-stream"},
		{"any type", "POST", "", pingLine, []map[string]string{session, with("Accept", "*/*")}, 200, ""},
		{"charset", "POST", "", pingLine, []map[string]string{session, with("Content-Type", "application/json; charset=utf-8")}, 200, ""},
		{"unknown path", "POST", "x", pingLine, []map[string]string{session}, 404, `"message":"not found: the MCP endpoint is /mcp"`},
		{"unknown profile", "POST", "/x", pingLine, []map[string]string{session}, 404, `"message":"there is no such profile: the URL is /mcp, or /mcp/ with the name of a profile"`},
		{"PUT", "PUT", "", pingLine, []map[string]string{session}, 405, ""},
		{"OPTIONS", "OPTIONS", "", "", []map[string]string{with("Origin", "http://localhost:1")}, 405, ""},

		{"foreign host", "POST", "", pingLine, []map[string]string{session, with("Host", "evil.example.com")}, 403, "--allow-host"},
		{"foreign host with port", "POST", "", pingLine, []map[string]string{session, with("Host", "evil.example.com:80")}, 403, ""},
		{"similar host", "POST", "", pingLine, []map[string]string{session, with("Host", "localhost.evil.com")}, 403, ""},
		{"address", "POST", "", pingLine, []map[string]string{session, with("Host", "192.168.1.1")}, 403, ""},
		{"localhost", "POST", "", pingLine, []map[string]string{session, with("Host", "LocalHost:99")}, 200, ""},
		{"IPv6 loopback", "POST", "", pingLine, []map[string]string{session, with("Host", "[::1]:99")}, 200, ""},
		{"other loopback", "POST", "", pingLine, []map[string]string{session, with("Host", "127.1.2.3")}, 200, ""},
		{"allowed host", "POST", "", pingLine, []map[string]string{session, with("Host", "tools.example.com")}, 200, ""},

		{"foreign origin", "POST", "", pingLine, []map[string]string{session, with("Origin", "http://evil.example")}, 403, "--allow-origin"},
		{"origin null", "POST", "", pingLine, []map[string]string{session, with("Origin", "null")}, 403, ""},
		{"similar origin", "POST", "", pingLine, []map[string]string{session, with("Origin", "http://localhost.evil.com")}, 403, ""},
		{"origin with a path", "POST", "", pingLine, []map[string]string{session, with("Origin", "http://localhost/x")}, 403, ""},
		{"local origin", "POST", "", pingLine, []map[string]string{session, with("Origin", "http://localhost:6274")}, 200, ""},

		{"no type", "POST", "", pingLine, []map[string]string{session, with("Content-Type", "")}, 415, ""},
		{"form", "POST", "", pingLine, []map[string]string{session, with("Content-Type", "application/x-www-form-urlencoded")}, 415, ""},
		{"compressed", "POST", "", pingLine, []map[string]string{session, with("Content-Encoding", "gzip")}, 415, ""},
		{"accepts nothing", "POST", "", pingLine, []map[string]string{session, with("Accept", "")}, 406, ""},
		{"accepts only JSON", "POST", "", pingLine, []map[string]string{session, with("Accept", "application/json")}, 406, ""},
		{"accepts only events", "POST", "", pingLine, []map[string]string{session, with("Accept", "text/event-stream")}, 406, ""},
		{"large body", "POST", "", long, []map[string]string{session}, 413, `"id":1,"error":{"code":-32600,"message":"the body is larger than 1 KB`},

		{"not JSON", "POST", "", "{", []map[string]string{session}, 400, `"code":-32700`},
		{"empty", "POST", "", "", []map[string]string{session}, 400, `"code":-32700`},
		{"not UTF-8", "POST", "", "{\"x\":\"\xff\"}", []map[string]string{session}, 400, `"code":-32700`},
		{"batch", "POST", "", "[" + pingLine + "]", []map[string]string{session}, 400, `"code":-32600`},
		{"no id", "POST", "", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, []map[string]string{session}, 400, `"code":-32600`},
		{"unknown method", "POST", "", `{"jsonrpc":"2.0","id":1,"method":"x"}`, []map[string]string{session}, 200, `"code":-32601`},
		{"notification", "POST", "", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, []map[string]string{session}, 202, ""},
		{"response", "POST", "", `{"jsonrpc":"2.0","id":1,"result":{}}`, []map[string]string{session}, 202, ""},

		{"no session", "POST", "", pingLine, nil, 400, "send initialize first"},
		{"unknown session", "POST", "", pingLine, []map[string]string{with("Mcp-Session-Id", "x")}, 404, `"code":-32001,"message":"the session does not exist any more: send initialize again"`},
		{"notification without session", "POST", "", `{"jsonrpc":"2.0","method":"x"}`, nil, 400, ""},
		{"GET without session", "GET", "", "", nil, 400, ""},
		{"GET of JSON", "GET", "", "", []map[string]string{session, with("Accept", "application/json")}, 406, ""},
		{"DELETE without session", "DELETE", "", "", nil, 400, ""},
		{"unknown version", "POST", "", pingLine, []map[string]string{session, with("MCP-Protocol-Version", "2030-01-01")}, 400, `"code":-32022`},
		{"no version", "POST", "", pingLine, []map[string]string{session, with("MCP-Protocol-Version", "")}, 200, ""},

		{"modern header without _meta", "POST", "", pingLine, []map[string]string{modernHeader("ping", "")}, 400, `"code":-32602`},
		{"discover without _meta", "POST", "", `{"jsonrpc":"2.0","id":1,"method":"server/discover"}`, nil, 400, `"code":-32602`},
		{"_meta without header", "POST", "", modernList, []map[string]string{with("Mcp-Method", "tools/list")}, 400, `"code":-32020`},
		{"_meta with another version", "POST", "", strings.Replace(modernList, "2026-07-28", "2030-01-01", 1), []map[string]string{modernHeader("tools/list", "")}, 400, `"code":-32020`},
		{"unknown version in both", "POST", "", strings.Replace(modernList, "2026-07-28", "2030-01-01", 1), []map[string]string{with("MCP-Protocol-Version", "2030-01-01")}, 400, `"code":-32022`},
		{"no Mcp-Method", "POST", "", modernList, []map[string]string{with("MCP-Protocol-Version", "2026-07-28")}, 400, `"code":-32020`},
		{"other Mcp-Method", "POST", "", modernList, []map[string]string{modernHeader("tools/call", "")}, 400, `"code":-32020`},
		{"modern unknown method", "POST", "", strings.Replace(modernList, "tools/list", "x/y", 1), []map[string]string{modernHeader("x/y", "")}, 404, `"code":-32601`},
		{"modern notification", "POST", "", `{"jsonrpc":"2.0","method":"x"}`, []map[string]string{modernHeader("x", "")}, 202, ""},
		{"modern GET", "GET", "", "", []map[string]string{modernHeader("", "")}, 405, ""},
		{"modern DELETE", "DELETE", "", "", []map[string]string{modernHeader("", "")}, 405, ""},
		{"modern call", "POST", "", callMessage("1", "ext_hello_greet", ","+modernMeta), []map[string]string{modernHeader("tools/call", "ext_hello_greet")}, 200, `"echo":{"name":"greet"`},
		{"encoded Mcp-Name", "POST", "", callMessage("1", "ext_hello_greet", ","+modernMeta), []map[string]string{modernHeader("tools/call", "=?base64?ZXh0X2hlbGxvX2dyZWV0?=")}, 200, ""},
		{"malformed Mcp-Name", "POST", "", callMessage("1", "ext_hello_greet", ","+modernMeta), []map[string]string{modernHeader("tools/call", "=?base64?ZXh0X2hlbGxvX2dyZWV0=?=")}, 400, `"code":-32020`},
		{"other Mcp-Name", "POST", "", callMessage("1", "ext_hello_greet", ","+modernMeta), []map[string]string{modernHeader("tools/call", "x")}, 400, `"code":-32020`},
		{"unknown tool", "POST", "", callMessage("1", "x", ","+modernMeta), []map[string]string{modernHeader("tools/call", "x")}, 200, `"code":-32602`},
	} {
		a := w.do(tt.method, tt.path, tt.body, tt.headers...)
		if a.status != tt.status || !strings.Contains(a.body, tt.text) {
			t.Errorf("%s: %d %s\nwant %d with %s", tt.name, a.status, a.body, tt.status, tt.text)
		}
		if len(a.body) > 0 && (a.header.Get("Content-Type") != "application/json" || !json.Valid([]byte(a.body))) {
			t.Errorf("%s: %s: %s", tt.name, a.header.Get("Content-Type"), a.body)
		}
	}
}

func TestCORS(t *testing.T) {
	_, d := helloBed(t)
	w := d.web(t, HTTPOptions{Origins: []string{"https://app.example.com", "https://*.example.org"}})
	for origin, allowed := range map[string]bool{
		"https://app.example.com": true, "https://a.b.example.org": true, "https://example.org": false, "http://a.example.org": false,
		"https://app.example.com.evil.com": false, "https://evilexample.org": false, "http://localhost": false, "null": false,
	} {
		a := w.do("OPTIONS", "", "", map[string]string{"Origin": origin, "Access-Control-Request-Headers": "mcp-param-x, x-other"})
		got := a.header.Get("Access-Control-Allow-Origin") == origin && a.status == 204 &&
			strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "Authorization") && strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "mcp-param-x")
		if got != allowed || strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "x-other") || a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: %d %v", origin, a.status, a.header)
		}
	}
}

// TestHTTPSession goes through a session of the legacy era: notifications, resumption, end.
func TestHTTPSession(t *testing.T) {
	t.Parallel()
	b, d := helloBed(t)
	w := d.web(t, HTTPOptions{MaxSessions: 1})
	session := w.begin("2025-11-25")
	if a := w.do("POST", "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`); a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("a second session: %+v", a)
	}
	next, stop := w.stream("GET", "", session)
	if id, data := next(); id == "" || data != "" {
		t.Errorf("the stream begins with the id %q and %q", id, data)
	}
	b.ready("more", "mcp", tool("more", "x"))
	id, data := next()
	if data != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` || id == "" {
		t.Errorf("event %s: %s", id, data)
	}
	stop()
	b.ready("most", "mcp", tool("most", "x"))
	n := w.h.sessions.get(session["Mcp-Session-Id"])
	natstest.Eventually(t, "a notification that nobody receives", func() bool { _, next, _, _ := n.main.from(0); return next == 2 })
	next, _ = w.stream("GET", "", session, map[string]string{"Last-Event-ID": id})
	next()
	if again, data := next(); !strings.Contains(data, "list_changed") || again == id {
		t.Errorf("after the event %s comes %s: %s", id, again, data)
	}
	second, _ := w.stream("GET", "", session) // it replaces the first
	second()
	if id, data := next(); id != "" || data != "" {
		t.Errorf("a replaced stream continues with %s", data)
	}
	for _, bad := range []string{"x", "main", "9-0", "main-x", "-"} {
		if a := w.do("GET", "", "", session, map[string]string{"Last-Event-ID": bad}); a.status != 400 {
			t.Errorf("Last-Event-ID %s: %+v", bad, a)
		}
	}
	if a := w.do("DELETE", "", "", session); a.status != 204 {
		t.Errorf("DELETE: %+v", a)
	}
	if id, data := second(); id != "" || data != "" {
		t.Errorf("after the end of the session: %s", data)
	}
	if a := w.do("POST", "", pingLine, session); a.status != 404 {
		t.Errorf("after DELETE: %+v", a)
	}
}

// slowBed has an extension whose tool sends progress, and answers when it is released.
func slowBed(t *testing.T) (b *bed, d *Door, release chan string, cancelled chan string) {
	b = newBed(t)
	b.ready("slow", "mcp", tool("slow", "work"))
	release, cancelled = make(chan string), make(chan string, 1)
	b.serve("slow", func(m *nats.Msg, _ string, params json.RawMessage) (string, error) {
		frame := nats.NewMsg(m.Reply)
		frame.Header.Set("Ext-Frame", "progress")
		frame.Data = []byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
		if err := b.nc.PublishMsg(frame); err != nil {
			t.Error(err)
		}
		for stop := time.After(limit); ; {
			select {
			case text := <-release:
				return text, nil
			case <-time.After(time.Second): // the caller takes silence for a failure
				frame.Data = nil
				frame.Header.Set("Ext-Frame", "keepalive")
				_ = b.nc.PublishMsg(frame)
			case <-stop:
				return "", errSilent
			}
		}
	})
	if _, err := b.nc.Subscribe("ext.slow.cancel", func(m *nats.Msg) { cancelled <- string(m.Data) }); err != nil {
		t.Fatal(err)
	}
	return b, b.door(Options{}), release, cancelled
}

// TestHTTPResume breaks the connection of a call, which continues, and fetches its answer.
func TestHTTPResume(t *testing.T) {
	_, d, release, _ := slowBed(t)
	w := d.web(t, HTTPOptions{})
	session := w.begin("2025-11-25")
	next, stop := w.stream("POST", callMessage("5", "ext_slow_work", `,"_meta":{"progressToken":"p"}`), session)
	prime, data := next()
	if prime == "" || data != "" {
		t.Errorf("the stream begins with the id %q and %q", prime, data)
	}
	id, data := next()
	if !strings.Contains(data, `"progressToken":"p"`) {
		t.Errorf("event %s: %s", id, data)
	}
	stop()
	release <- `{"done":1}`
	final := ""
	for last, want := range map[string]int{id: 1, prime: 2} {
		next, _ := w.stream("GET", "", session, map[string]string{"Last-Event-ID": last})
		next()
		for range want {
			final, data = next()
		}
		if data != `{"jsonrpc":"2.0","id":5,"result":{"content":[],"done":1}}` {
			t.Errorf("after the event %s: %s", last, data)
		}
		if id, data := next(); id+data != "" {
			t.Errorf("after the result: %s", data)
		}
	}
	if a := w.do("GET", "", "", session, map[string]string{"Last-Event-ID": final}); a.status != 204 { // nothing will follow
		t.Errorf("after the last event: %+v", a)
	}
}

// TestHTTPModernClose checks that a closed connection cancels a call of the modern era.
func TestHTTPModernClose(t *testing.T) {
	_, d, _, cancelled := slowBed(t)
	w := d.web(t, HTTPOptions{})
	more := `,"_meta":{"progressToken":1,` + strings.TrimPrefix(modernMeta, `"_meta":{`)
	next, stop := w.stream("POST", callMessage("5", "ext_slow_work", more), modernHeader("tools/call", "ext_slow_work"))
	if id, data := next(); id != "" || !strings.Contains(data, `"progressToken":1`) {
		t.Errorf("event %q: %s", id, data)
	}
	stop()
	select {
	case <-cancelled:
	case <-time.After(limit):
		t.Error("the call was not cancelled on the mesh")
	}
}

// TestHTTPLegacyCancel cancels a call by a notification: the POST request ends without an answer.
func TestHTTPLegacyCancel(t *testing.T) {
	_, d, _, cancelled := slowBed(t)
	w := d.web(t, HTTPOptions{})
	session := w.begin("2025-06-18")
	next, _ := w.stream("POST", callMessage("5", "ext_slow_work", `,"_meta":{"progressToken":1}`), session)
	if id, data := next(); id != "" || !strings.Contains(data, "progress") { // this version has no ids
		t.Errorf("event %q: %s", id, data)
	}
	if a := w.do("POST", "", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`, session); a.status != 202 {
		t.Errorf("the notification: %+v", a)
	}
	<-cancelled
	if id, data := next(); id+data != "" {
		t.Errorf("a cancelled call was answered: %s", data)
	}
}

// TestHTTPListen subscribes twice in the modern era.
func TestHTTPListen(t *testing.T) {
	b, d := helloBed(t)
	w := d.web(t, HTTPOptions{})
	body := func(id string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + modernMeta + `}}`
	}
	first, _ := w.stream("POST", body("1"), modernHeader(mcp.MethodListen, ""))
	second, stop := w.stream("POST", body("1"), modernHeader(mcp.MethodListen, ""))
	for _, next := range []func() (string, string){first, second} {
		if _, data := next(); !strings.Contains(data, mcp.NotifyAcknowledged) {
			t.Errorf("the first event is %s", data)
		}
	}
	stop()
	b.ready("more", "mcp", tool("more", "x"))
	if _, data := first(); data != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}}` {
		t.Errorf("the notification is %s", data)
	}
}

// TestHTTPDrain stops the server: streams end with their result, and a call in flight completes.
func TestHTTPDrain(t *testing.T) {
	_, d, release, _ := slowBed(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.ServeHTTP(ctx, l, HTTPOptions{}) }() // ends with ctx
	w := &web{t: t, url: "http://" + l.Addr().String() + "/mcp"}
	session := w.begin("2025-11-25")
	listen, _ := w.stream("POST", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},`+modernMeta+`}}`, modernHeader(mcp.MethodListen, ""))
	listen()
	main, _ := w.stream("GET", "", session)
	main()
	call, _ := w.stream("POST", callMessage("5", "ext_slow_work", `,"_meta":{"progressToken":1}`), session)
	call()
	call()
	cancel()
	if _, data := listen(); data != `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":1}}}` {
		t.Errorf("the subscription ends with %s", data)
	}
	if id, data := main(); id+data != "" {
		t.Errorf("the session's stream ends with %s", data)
	}
	release <- `{"done":1}`
	if _, data := call(); !strings.Contains(data, `"done":1`) {
		t.Errorf("the call ends with %s", data)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Error("the server does not end")
	}
}

// logBuffer is a log that a test reads while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestTokens checks authentication, the profiles of a token, and that a changed file is read again.
func TestTokens(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "who"))
	b.serve("x", func(m *nats.Msg, _ string, _ json.RawMessage) (string, error) {
		return fmt.Sprintf(`{"agent":%q,"headers":%d}`, m.Header.Get("Ext-Agent"), len(m.Header.Get("Authorization"))), nil
	})
	d := b.door(Options{Profiles: map[string]ViewOptions{"none": {Exclude: []string{"*"}}}})
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	write := func(mode os.FileMode, entries ...string) {
		text := "tokens:\n"
		for _, e := range entries {
			name, rest, _ := strings.Cut(e, " ")
			sum := sha256.Sum256([]byte("secret-" + name))
			text += "  " + name + ": {sha256: " + hex.EncodeToString(sum[:]) + rest + "}\n"
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	write(0o644, "ada")
	var log logBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	lookAgain := func(t *Tokens) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.looked = time.Time{}
	}
	if _, err := LoadTokens(path, logger); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others can read: %v", err)
	}
	write(0o600, "ada", "bob , profiles: [none]", "old , expires: 2020-01-01")
	tokens, err := LoadTokens(path, logger)
	if err != nil {
		t.Fatal(err)
	}
	w := d.web(t, HTTPOptions{Tokens: tokens, AnyHost: true})
	auth := func(v string) map[string]string {
		return map[string]string{"Authorization": v, "Host": "any.example.com"}
	}
	for _, tt := range []struct {
		path, auth string
		status     int
	}{
		{"", "Bearer secret-ada", 200}, {"", "bearer secret-ada", 200}, {"/none", "Bearer secret-ada", 200}, {"", "", 401}, {"", "Bearer", 401},
		{"", "Bearer secret-adb", 401}, {"", "Basic secret-ada", 401}, {"", "Bearer secret-old", 401}, {"", "Bearer secret-bob", 403},
		{"/none", "Bearer secret-bob", 200}, {"?access_token=secret-ada", "", 401}, {"/other", "Bearer secret-ada", 404},
	} {
		a := w.do("POST", tt.path, modernList, modernHeader("tools/list", ""), auth(tt.auth))
		if a.status != tt.status || a.status == 401 && !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s with %q: %d %v %s", tt.path, tt.auth, a.status, a.header, a.body)
		}
		if a.status == 200 && !strings.Contains(a.body, `"cacheScope":"private"`) {
			t.Errorf("%s with %q: %s", tt.path, tt.auth, a.body)
		}
	}
	for _, path := range []string{"/register", "/.well-known/oauth-authorization-server/mcp"} { // what clients request after a 401
		at := *w
		at.url = strings.TrimSuffix(w.url, "/mcp") + path
		var e struct {
			Error       string `json:"error"`
			Description string `json:"error_description"`
		}
		a := at.do("POST", "", "{}")
		if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.status != 404 || e.Error != "invalid_request" || !strings.Contains(e.Description, "bearer token is missing, unknown or expired") {
			t.Errorf("%s: %+v, %v", path, a, err)
		}
	}
	call := callMessage("1", "ext_x_who", ","+modernMeta)
	if a := w.do("POST", "", call, modernHeader("tools/call", "ext_x_who"), auth("Bearer secret-ada")); !strings.Contains(a.body, `"agent":"ada","headers":0`) {
		t.Errorf("the call: %+v", a)
	}
	session := w.begin("2025-11-25", auth("Bearer secret-ada"))
	write(0o600, "ada", "eve")
	lookAgain(tokens)
	if a := w.do("POST", "", pingLine, session); a.status != 200 {
		t.Errorf("the session's own token: %+v", a)
	}
	if a := w.do("POST", "", pingLine, session, auth("Bearer secret-eve")); a.status != 404 {
		t.Errorf("a session of somebody else: %+v", a)
	}
	if err := os.WriteFile(path, []byte("tokens: {broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		lookAgain(tokens)
		tokens.find("")
	}
	if a := w.do("POST", "", pingLine, session); a.status != 200 || strings.Count(log.String(), "cannot be read") != 1 {
		t.Errorf("with a broken file: %+v; log: %s", a, log.String())
	}
	for _, step := range []struct {
		text     string
		ada, eve bool
	}{
		{"", true, true}, // it is being written
		{"tokens:\n", true, true},
		{"tokens: {ada: {sha256: SHA-ada, context: missing.json}, eve: {sha256: SHA-eve}}", false, true},
		{"tokens: {ada: {sha256: SHA-ada}, eve: {sha256: SHA-eve}}", true, true},
		{"tokens: {}", false, false},
	} {
		text := step.text
		for _, name := range []string{"ada", "eve"} {
			sum := sha256.Sum256([]byte("secret-" + name))
			text = strings.ReplaceAll(text, "SHA-"+name, hex.EncodeToString(sum[:]))
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]bool{"ada": step.ada, "eve": step.eve} {
			lookAgain(tokens)
			if _, ok := tokens.find("secret-" + name); ok != want {
				t.Errorf("%s: %s is accepted: %v", text, name, ok)
			}
		}
	}
	for text, want := range map[string]string{"tokens: {}": "it has no tokens", "": "it has no tokens"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadTokens(path, logger); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q at the start: %v", text, err)
		}
	}
	if strings.Contains(log.String(), "secret-") {
		t.Errorf("the log has a token: %s", log.String())
	}
}

// TestSweep ends sessions that are not used.
func TestSweep(t *testing.T) {
	_, d := helloBed(t)
	w := d.web(t, HTTPOptions{})
	session := w.begin("2025-11-25")
	w.h.sessions.sweep(time.Now().Add(sessionIdle-time.Minute), w.h.permits)
	if a := w.do("POST", "", pingLine, session); a.status != 200 {
		t.Errorf("before the time: %+v", a)
	}
	w.h.sessions.sweep(time.Now().Add(sessionIdle+time.Minute), w.h.permits)
	if a := w.do("POST", "", pingLine, session); a.status != 404 {
		t.Errorf("after the time: %+v", a)
	}
	d.view.mu.Lock()
	defer d.view.mu.Unlock()
	if len(d.view.listeners) != 0 {
		t.Error("the session is still notified")
	}
}

// TestSweepRevoked ends sessions whose token was removed, or has another context.
func TestSweepRevoked(t *testing.T) {
	_, d := helloBed(t)
	path := writeTokens(t, "", "ada", "bob")
	tokens := loadTokens(t, path)
	w := d.web(t, HTTPOptions{Tokens: tokens})
	ada, bob := w.begin("2025-11-25", auth("ada")), w.begin("2025-11-25", auth("bob"))
	sweep := func(more string, names ...string) {
		rewriteTokens(t, path, more, names...)
		tokens.mu.Lock()
		tokens.looked, tokens.size = time.Time{}, 0
		tokens.mu.Unlock()
		w.h.sessions.sweep(time.Now(), w.h.permits)
	}
	sweep("", "ada")
	if w.h.sessions.get(bob["Mcp-Session-Id"]) != nil || w.h.sessions.get(ada["Mcp-Session-Id"]) == nil {
		t.Error("want the session of ada only")
	}
	sweep(", context: other", "ada")
	if n := w.h.sessions.number(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// TestParamHeaders checks the headers that repeat arguments.
func TestParamHeaders(t *testing.T) {
	schema := json.RawMessage(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},
		"opt":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}}}}`)
	for _, tt := range []struct {
		args    string
		headers http.Header
		ok      bool
	}{
		{`{}`, nil, true},
		{`{"region":"eu"}`, http.Header{"Mcp-Param-Region": {"eu"}}, true},
		{`{"region":"eu"}`, http.Header{"Mcp-Param-Region": {"us"}}, false},
		{`{"region":"eu"}`, nil, false},
		{`{"region":null}`, nil, true},
		{`{}`, http.Header{"Mcp-Param-Region": {"eu"}}, false},
		{`{"region":"é"}`, http.Header{"Mcp-Param-Region": {"=?base64?w6k=?="}}, true},
		{`{"region":"é"}`, http.Header{"Mcp-Param-Region": {"=?base64?w6k?="}}, false},
		{`{"opt":{"n":7.0}}`, http.Header{"Mcp-Param-N": {"7"}}, true},
		{`{"opt":{"n":7}}`, http.Header{"Mcp-Param-N": {"8"}}, false},
		{`{"opt":7}`, nil, true},
	} {
		p, e := mcp.ParseParams([]byte(`{"name":"t","arguments":` + tt.args + `,` + modernMeta + `}`))
		if e != nil {
			t.Fatal(e)
		}
		h := http.Header{"Mcp-Protocol-Version": {mcp.Modern}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {"t"}}
		for k, v := range tt.headers {
			h[k] = v
		}
		if e := mcp.CheckHeaders(h, "tools/call", &p, schema); (e == nil) != tt.ok {
			t.Errorf("%s with %v: %v", tt.args, tt.headers, e)
		}
	}
}

// deadlines is a connection that remembers the deadline for writing.
type deadlines struct {
	*httptest.ResponseRecorder
	last time.Time
}

func (d *deadlines) SetWriteDeadline(at time.Time) error { d.last = at; return nil }

// TestStreamsStayOpen: no deadline is left when an event is written, because HTTP/2 resets a stream at its deadline.
func TestStreamsStayOpen(t *testing.T) {
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	p := &reply{x: &exchange{usage: new(usage), w: &recorder{ResponseWriter: w}}}
	p.notify([]byte(`{"method":"x"}`))
	if !w.Flushed || !w.last.IsZero() || !strings.Contains(w.Body.String(), `data: {"method":"x"}`) {
		t.Errorf("flushed %v, deadline %s: %s", w.Flushed, w.last, w.Body)
	}
	p.end(http.StatusOK, []byte(`{"result":1}`))
	if !strings.HasSuffix(w.Body.String(), "data: {\"result\":1}\n\n") {
		t.Errorf("%s", w.Body)
	}
}

// TestCallersContext checks what extensions learn about the caller: which calls belong together, and the trace of an HTTP header.
func TestCallersContext(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "who"))
	b.serve("x", func(m *nats.Msg, _ string, _ json.RawMessage) (string, error) {
		return fmt.Sprintf(`{"content":[],"session":%q,"trace":%q}`, m.Header.Get("Ext-Session"), m.Header.Get("traceparent")), nil
	})
	d := b.door(Options{})
	one, other := d.pipe(t), d.pipe(t)
	first, again, second := one.ask(callMessage("1", "ext_x_who", "")), one.ask(callMessage("1", "ext_x_who", "")), other.ask(callMessage("1", "ext_x_who", ""))
	if first != again || first == second || strings.Contains(first+second, `"session":""`) {
		t.Errorf("two conversations: %s, %s, %s", first, again, second)
	}
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	w := d.web(t, HTTPOptions{})
	header := modernHeader("tools/call", "ext_x_who")
	header["Traceparent"] = trace
	if a := w.do("POST", "", callMessage("1", "ext_x_who", ","+modernMeta), header); !strings.Contains(a.body, `"session":"","trace":"`+trace[:35]) {
		t.Errorf("a request that stands alone: %+v", a)
	}
}

// TestInitializeOverHTTP: initialize negotiates the version, whatever the header has.
func TestInitializeOverHTTP(t *testing.T) {
	_, d := helloBed(t)
	w := d.web(t, HTTPOptions{})
	for _, version := range []string{"2026-07-28", "2099-01-01"} {
		a := w.do("POST", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`,
			map[string]string{"MCP-Protocol-Version": version})
		if a.status != http.StatusOK || !strings.Contains(a.body, `"protocolVersion":"2025-11-25"`) {
			t.Errorf("%s: %+v", version, a)
		}
	}
}
