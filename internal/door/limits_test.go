package door

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// writeTokens writes a file in which each name has the token secret-<name>. more are further members of all entries.
func writeTokens(t *testing.T, more string, names ...string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tokens.yaml")
	rewriteTokens(t, path, more, names...)
	return path
}

func rewriteTokens(t *testing.T, path, more string, names ...string) {
	t.Helper()
	text := "tokens:\n"
	for _, name := range names {
		sum := sha256.Sum256([]byte("secret-" + name))
		text += "  " + name + ": {sha256: " + hex.EncodeToString(sum[:]) + more + "}\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func loadTokens(t *testing.T, path string) *Tokens {
	t.Helper()
	tokens, err := LoadTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func auth(name string) map[string]string {
	return map[string]string{"Authorization": "Bearer secret-" + name}
}

// TestRateTake checks the number of requests at a rate.
func TestRateTake(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	u := usage{requests: newLimiter(10)}
	taken := func() (n int) {
		for {
			wait, ok := u.take(now)
			if !ok {
				if wait <= 0 || wait > 100*time.Millisecond {
					t.Errorf("wait %v", wait)
				}
				return n
			}
			n++
		}
	}
	for _, tt := range []struct {
		later time.Duration
		want  int
	}{{0, 40}, {0, 0}, {time.Second, 10}, {99 * time.Millisecond, 0}, {time.Millisecond, 1}, {time.Hour, 40}} {
		if now = now.Add(tt.later); taken() != tt.want {
			t.Errorf("%v later: not %d requests", tt.later, tt.want)
		}
	}
	if _, ok := new(usage).take(now); !ok {
		t.Error("refused without a limit")
	}
}

// TestRate sends more requests with one token than it may; another token is not affected.
func TestRate(t *testing.T) {
	d := runDoor(t, Options{})
	w := d.web(t, HTTPOptions{Rate: 1, Tokens: loadTokens(t, writeTokens(t, "", "ada", "bob"))})
	now := time.Now().Add(time.Hour)
	for range burstOf {
		w.h.users.of("ada").take(now) // in the future, so that nothing is added while the test runs
	}
	a := w.do("POST", "", modernList, modernHeader("tools/list", ""), auth("ada"))
	if a.status != 429 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "more than 1 requests per second") {
		t.Errorf("one request too many: %+v", a)
	}
	if a := w.do("POST", "", modernList, modernHeader("tools/list", ""), auth("bob")); a.status != 200 {
		t.Errorf("the other token: %+v", a)
	}
}

// TestCallsOfToken checks that the limit of calls counts all requests with one token.
func TestCallsOfToken(t *testing.T) {
	b, _, release, _ := slowBed(t)
	d := b.door(Options{MaxCalls: 1})
	w := d.web(t, HTTPOptions{Tokens: loadTokens(t, writeTokens(t, "", "ada", "bob"))})
	call := callMessage("1", "ext_slow_work", `,"_meta":{"progressToken":1,`+strings.TrimPrefix(modernMeta, `"_meta":{`))
	next, _ := w.stream("POST", call, modernHeader("tools/call", "ext_slow_work"), auth("ada"))
	next() // it runs
	if a := w.do("POST", "", call, modernHeader("tools/call", "ext_slow_work"), auth("ada")); !strings.Contains(a.body, "1 calls are already running") {
		t.Errorf("the second call: %+v", a)
	}
	other, _ := w.stream("POST", call, modernHeader("tools/call", "ext_slow_work"), auth("bob"))
	other()
	release <- `{}`
	release <- `{}`
	next()
	other()
	if a := w.do("POST", "", callMessage("1", "x", ","+modernMeta), modernHeader("tools/call", "x"), auth("ada")); !strings.Contains(a.body, "no tool x") {
		t.Errorf("after the first call: %+v", a)
	}
}

// TestTooManyStreams checks the limit of open streams.
func TestTooManyStreams(t *testing.T) {
	d := runDoor(t, Options{})
	w := d.web(t, HTTPOptions{})
	session := w.begin("2025-11-25")
	w.h.users.of("").streams.Store(maxUserStreams - 1)
	_, stop := w.stream("GET", "", session)
	listen := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + modernMeta + `}}`
	for _, a := range []answer{w.do("GET", "", "", session), w.do("POST", "", listen, modernHeader(mcp.MethodListen, ""))} {
		if a.status != 503 || a.header.Get("Retry-After") == "" {
			t.Errorf("one stream too many: %+v", a)
		}
	}
	stop()
}

// pipes is a listener whose connections are in memory, so that they follow the time of a synctest bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns a connection of a client.
func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// inBubble runs f with an HTTP server in a synctest bubble.
func inBubble(t *testing.T, o HTTPOptions, f func(t *testing.T, p *pipes)) {
	t.Helper()
	inBubbleWith(t, Options{}, o, f)
}

func inBubbleWith(t *testing.T, options Options, o HTTPOptions, f func(t *testing.T, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		d := runDoor(t, options)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.ServeHTTP(ctx, p, o) }() // ends with ctx
		f(t, p)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestSlowRequests sends the head and the body of a request too slowly.
func TestSlowRequests(t *testing.T) {
	head := "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: */*\r\nContent-Length: 1000\r\n"
	for _, tt := range []struct {
		name, sent string
		after      time.Duration
		want       string
	}{
		{"head", head, headerTimeout, ""},
		{"body", head + "\r\n{", bodyTimeout, "400 Bad Request"},
		{"body after its id", head + "\r\n" + `{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"`, bodyTimeout, `"id":7,"error"`},
		{"body of a request that is refused", strings.Replace(head, "/mcp", "/nothing", 1) + "\r\n{", bodyTimeout, "404 Not Found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, HTTPOptions{}, func(t *testing.T, p *pipes) {
				c := p.dial()
				defer c.Close()
				began := time.Now()
				if _, err := io.WriteString(c, tt.sent); err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(c)
				if took := time.Since(began); err != nil || took < tt.after || took > tt.after+5*time.Second || !strings.Contains(string(text), tt.want) {
					t.Errorf("ended after %v, %v: %s", took, err, text)
				}
			})
		})
	}
}

// TestLargeBodyIsRead: a client that writes the whole body before it reads gets the refusal.
func TestLargeBodyIsRead(t *testing.T) {
	inBubble(t, HTTPOptions{MaxBody: 1000}, func(t *testing.T, p *pipes) {
		c := p.dial()
		defer c.Close()
		body := `{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"` + strings.Repeat("x", 1<<20) + `"}}`
		if _, err := fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: */*\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			t.Fatal(err) // the pipe has no buffer
		}
		text, err := io.ReadAll(c)
		if err != nil || !strings.Contains(string(text), "413") || !strings.Contains(string(text), `"id":7`) {
			t.Errorf("%s, %v", text, err)
		}
	})
}

// openStream opens a stream of notifications of the modern era and reads the first event.
func openStream(t *testing.T, c net.Conn, header string) *bufio.Reader {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + modernMeta + `}}`
	_, err := fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: */*\r\nMCP-Protocol-Version: %s\r\nMcp-Method: %s\r\n%sContent-Length: %d\r\n\r\n%s",
		mcp.Modern, mcp.MethodListen, header, len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v, %+v", err, res)
	}
	out := bufio.NewReader(res.Body)
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "data: ") {
			return out
		}
	}
}

// TestSlowReader checks that a client that does not read its stream loses it, and that one that reads gets comments.
func TestSlowReader(t *testing.T) {
	inBubble(t, HTTPOptions{}, func(t *testing.T, p *pipes) {
		reads, doesNot := p.dial(), p.dial()
		defer reads.Close()
		defer doesNot.Close()
		openStream(t, doesNot, "")
		r := openStream(t, reads, "")
		began := time.Now()
		comments := 0
		for comments < 2 {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if line == ":\n" {
				comments++
			}
		}
		if took := time.Since(began); took != 2*keepAliveEvery {
			t.Errorf("two comments after %v", took)
		}
		// A pipe has no buffer: the server waited for the other client with its first comment.
		if _, err := io.ReadAll(doesNot); err != nil {
			t.Error(err)
		}
	})
}

// TestUnreadAnswers: a client whose answers take too much memory, because it does not read them, gets no more.
func TestUnreadAnswers(t *testing.T) {
	_, d := helloBed(t)
	w := d.web(t, HTTPOptions{})
	unread := &w.h.users.of("").unread
	list := func() answer { return w.do("POST", "", modernList, modernHeader("tools/list", "")) }
	unread.Store(maxUnread + 1)
	if a := list(); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
		t.Errorf("over the limit: %+v", a)
	}
	unread.Store(0)
	if a := list(); a.status != http.StatusOK {
		t.Errorf("under the limit: %+v", a)
	}
	natstest.Eventually(t, "nothing is being written", func() bool { return unread.Load() == 0 })
}

// TestUnreadIsCounted checks that answers and events count as unread while they are being written, and not afterwards.
func TestUnreadIsCounted(t *testing.T) {
	message := []byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	for name, send := range map[string]func(p *reply){
		"answer": func(p *reply) { p.end(http.StatusOK, message) },
		"event":  func(p *reply) { p.notify(message) },
	} {
		u := new(usage)
		w := &unreadWriter{ResponseRecorder: httptest.NewRecorder(), unread: &u.unread}
		p := &reply{x: &exchange{w: &recorder{ResponseWriter: w}, usage: u}}
		send(p)
		if w.most < int64(len(message)) || u.unread.Load() != 0 {
			t.Errorf("%s: %d bytes are unread during the write, %d after it", name, w.most, u.unread.Load())
		}
		if p.keepAlive != nil {
			p.keepAlive.Stop()
		}
	}
}

// unreadWriter keeps how much was unread during a write.
type unreadWriter struct {
	*httptest.ResponseRecorder
	unread *atomic.Int64
	most   int64
}

func (w *unreadWriter) Write(p []byte) (int, error) {
	w.most = max(w.most, w.unread.Load())
	return w.ResponseRecorder.Write(p)
}

// TestSlowAnswer checks that an answer of the modern era that takes long becomes a stream, unless the client takes only JSON.
func TestSlowAnswer(t *testing.T) {
	const wait = 40 * time.Second // for the mesh, which does not come
	for accept, want := range map[string]string{"application/json, text/event-stream": "text/event-stream", "application/json": "application/json"} {
		inBubbleWith(t, Options{Wait: wait}, HTTPOptions{}, func(t *testing.T, p *pipes) {
			c := p.dial()
			defer c.Close()
			began := time.Now()
			_, err := fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: %s\r\nMCP-Protocol-Version: %s\r\nMcp-Method: tools/list\r\nContent-Length: %d\r\n\r\n%s",
				accept, mcp.Modern, len(modernList), modernList)
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			if kind := res.Header.Get("Content-Type"); kind != want || (took == keepAliveEvery) != (want == "text/event-stream") {
				t.Errorf("Accept: %s: %s after %v", accept, kind, took)
			}
			if body, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(body), `"tools":[`) || time.Since(began) != wait {
				t.Errorf("Accept: %s: %s after %v, %v", accept, body, time.Since(began), err)
			}
		})
	}
}

// TestRevokedToken checks that an open stream ends after its token was removed from the file, or got other credentials.
func TestRevokedToken(t *testing.T) {
	t.Run("removed", func(t *testing.T) { revokeToken(t, "", "eve", "bob") })
	t.Run("other context", func(t *testing.T) { revokeToken(t, ", context: other", "ada") })
}

func revokeToken(t *testing.T, more string, names ...string) {
	path := writeTokens(t, "", "ada")
	tokens := loadTokens(t, path)
	inBubble(t, HTTPOptions{Tokens: tokens}, func(t *testing.T, p *pipes) {
		c := p.dial()
		defer c.Close()
		r := openStream(t, c, "Authorization: Bearer secret-ada\r\n")
		if line, err := r.ReadString('\n'); err != nil || line != "\n" { // the end of the first event
			t.Fatalf("%q, %v", line, err)
		}
		if line, err := r.ReadString('\n'); err != nil || line != ":\n" {
			t.Errorf("while the token is there: %q, %v", line, err)
		}
		rewriteTokens(t, path, more, names...)
		rest, err := io.ReadAll(r)
		if strings.Contains(string(rest), ":") || err != nil {
			t.Errorf("after the token was changed: %q, %v", rest, err)
		}
	})
}

// TestDrainCancels stops the server while a call takes longer than the time for that: the client gets a result.
func TestDrainCancels(t *testing.T) {
	for _, kind := range []string{"modern", "legacy", "resumed"} {
		modern := kind == "modern"
		_, d, _, cancelled := slowBed(t)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.ServeHTTP(ctx, l, HTTPOptions{Drain: 10 * time.Millisecond, lastAnswers: limit}) }() // ends with ctx
		w := &web{t: t, url: "http://" + l.Addr().String() + "/mcp"}
		header, meta := modernHeader("tools/call", "ext_slow_work"), modernMeta[:len(modernMeta)-1]+`,"progressToken":1}`
		if !modern {
			header, meta = w.begin("2025-11-25"), `"_meta":{"progressToken":1}`
		}
		call, stop := w.stream("POST", callMessage("5", "ext_slow_work", ","+meta), header)
		last, _ := call()
		if !modern { // its first event has an id only
			last, _ = call()
		}
		if kind == "resumed" {
			stop()
			call, _ = w.stream("GET", "", header, map[string]string{"Last-Event-ID": last})
			call()
		}
		cancel()
		if _, data := call(); !strings.Contains(data, `"isError":true`) || !strings.Contains(data, "The MCP server is stopping") {
			t.Errorf("%s: the call ends with %s", kind, data)
		}
		<-cancelled
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestRemembered checks that streams of answers remember a limited number of bytes.
func TestRemembered(t *testing.T) {
	all := newSessions(t.Context(), 1)
	d := runDoor(t, Options{})
	n, _ := all.add(d.newClient(d.view, ""), true)
	big := make([]byte, 100<<20)
	old, _ := newSessions(t.Context(), 1).add(d.newClient(d.view, ""), false)
	if s := old.newStream(); s.add([]byte("x")) != "" || len(s.events) != 0 || len(old.streams) != 0 {
		t.Error("an event without an id is remembered, which no client can fetch")
	}
	first, second, third := n.newStream(), n.newStream(), n.newStream()
	for s, want := range map[*stream]int{first: 1, second: 1} {
		if s.add(big); len(s.events) != want {
			t.Errorf("stream %s has %d events", s.id, len(s.events))
		}
	}
	if id := third.add(big); len(third.events) != 0 || id != "3-0" {
		t.Errorf("the stream over the limit has %d events, id %s", len(third.events), id)
	}
	first.end()
	all.sweep(time.Now().Add(resumeTime+time.Second), func(*client) bool { return true })
	if third.add(big); len(third.events) != 1 {
		t.Error("there is no room after the first was forgotten")
	}
	all.end(n)
	if second.add(big); all.remembered.Load() != 0 {
		t.Errorf("%d bytes are remembered after the end of the session", all.remembered.Load())
	}
}

// TestRoomForSessions: a token has half of the sessions. A new one takes the place of one that was unused for a minute.
func TestRoomForSessions(t *testing.T) {
	all := newSessions(t.Context(), 4)
	d := runDoor(t, Options{})
	add := func(principal string) (*session, bool) { return all.add(d.newClient(d.view, principal), true) }
	first, _ := add("ada")
	second, _ := add("ada")
	if _, ok := add("ada"); ok {
		t.Error("ada has a third session")
	}
	if _, ok := add("bob"); !ok {
		t.Error("bob has none")
	}
	first.used, second.used = time.Now().Add(-2*replaceAfter), time.Now().Add(-3*replaceAfter)
	done := second.use()
	third, ok := add("ada")
	if !ok || all.get(first.id) != nil || all.get(second.id) != second {
		t.Error("the unused session was not replaced")
	}
	done()
	for _, n := range []*session{second, third} {
		all.end(n)
	}
	all.endAll()
}

// TestRoomInFullServer: unused sessions of any token make room, those in use do not.
func TestRoomInFullServer(t *testing.T) {
	all := newSessions(t.Context(), 4)
	defer all.endAll()
	d := runDoor(t, Options{})
	add := func(principal string) (*session, bool) { return all.add(d.newClient(d.view, principal), true) }
	var sessions []*session
	for _, principal := range []string{"ada", "ada", "bob", "bob"} {
		n, _ := add(principal)
		sessions = append(sessions, n)
	}
	if _, ok := add("carl"); ok {
		t.Error("a session in use made room")
	}
	for i, n := range sessions {
		n.used = time.Now().Add(-time.Duration(i+2) * replaceAfter)
	}
	if _, ok := add("carl"); !ok || all.get(sessions[3].id) != nil {
		t.Error("the session that was not used for longest is still there")
	}
	if _, ok := add("ada"); !ok || all.get(sessions[1].id) != nil || all.get(sessions[2].id) == nil {
		t.Error("a token with half of the sessions did not replace its own")
	}
}

// TestConnectionReplaced: a connection of a client is replaced after a failed attempt, after it was closed, and when the Door has
// connected to another mesh.
func TestConnectionReplaced(t *testing.T) {
	dialled, closed := 0, make(chan int, 10)
	var fault error
	d := runDoor(t, Options{})
	s := &identities{door: d, all: map[string]*identity{}}
	s.dial = func(context.Context, string, *mesh.Catalog) (Connection, error) {
		dialled++
		n, gone := dialled, make(chan struct{})
		return Connection{IsClosed: func() bool { return isClosed(gone) }, Close: sync.OnceFunc(func() { close(gone); closed <- n })}, fault
	}
	connect := func(base *backend, want int) (c Connection, err error) {
		t.Helper()
		if c, err = s.connection(t.Context(), "ada.json", base); dialled != want {
			t.Errorf("%d attempts, want %d", dialled, want)
		}
		return c, err
	}
	first, second := &backend{}, &backend{}
	fault = errors.New("wrong password")
	if _, err := connect(first, 1); !errors.Is(err, fault) {
		t.Error(err)
	}
	fault = nil
	_, _ = connect(first, 2)
	c, _ := connect(first, 2)
	c.Close()
	_, _ = connect(first, 3)
	_, _ = connect(second, 4)
	s.close()
	got := []int{<-closed, <-closed, <-closed}
	slices.Sort(got[1:]) // two goroutines
	if !slices.Equal(got, []int{2, 3, 4}) {
		t.Errorf("closed: %v", got)
	}
}
