package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// The methods that internal/bridge uses.
var _ interface {
	rpc.Caller
	jsonrpc.Starter
	Cancel(x *jsonrpc.Exchange) (id uint64, ok bool)
	Notify(method string, params json.RawMessage) error
	Run(ctx context.Context) error
} = (*Conn)(nil)

// secret is part of every header and URL in these tests, and must not occur in any error or log line.
const secret = "s3cr3t-t0ken-0123456789"

// request is a request that a server has received.
type request struct {
	HTTP   *http.Request
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Error  json.RawMessage
	Result json.RawMessage
}

// serve starts a server that parses POSTs for h. It is closed when the test has ended, after its clients.
func serve(t testing.TB, h func(w http.ResponseWriter, r *request)) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		h(w, parse(t, hr))
	}))
	t.Cleanup(srv.Close)
	return srv
}

func parse(t testing.TB, hr *http.Request) *request {
	r := &request{HTTP: hr}
	body, err := io.ReadAll(hr.Body)
	if err == nil && len(body) > 0 {
		if err := json.Unmarshal(body, r); err != nil {
			t.Errorf("the request %q: %v", body, err)
		}
	}
	return r
}

// runningConn is a Conn that runs.
type runningConn struct {
	*Conn
	stop context.CancelFunc
	done chan struct{} // closed when Run has returned
	err  error         // what it returned
	logs *safeBuffer
}

// start runs a Conn until the end of the test, and checks that the secret is not in its log.
func start(t testing.TB, cfg Config) *runningConn {
	t.Helper()
	logs := &safeBuffer{}
	cfg.Logger = slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	c := &runningConn{Conn: New(cfg), stop: stop, done: make(chan struct{}), logs: logs}
	go func() { // owned by the test; ends with the cleanup
		defer close(c.done)
		c.err = c.Run(ctx)
	}()
	t.Cleanup(func() {
		c.end(t)
		if strings.Contains(logs.String(), secret) {
			t.Errorf("the log contains the secret:\n%s", logs)
		}
	})
	return c
}

func (c *runningConn) end(t testing.TB) {
	t.Helper()
	c.stop()
	select {
	case <-c.done:
	case <-time.After(time.Minute):
		t.Error("Run does not return")
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func soon(t testing.TB) context.Context { return within(t, time.Minute) }

// fails checks that err is an rpc.Error with this code and ran, contains texts, and does not contain the secret.
func fails(t testing.TB, err error, code rpc.Code, ran rpc.Ran, texts ...string) rpc.Details {
	t.Helper()
	e, ok := errors.AsType[*rpc.Error](err)
	if !ok {
		t.Fatalf("got %v, want an *rpc.Error", err)
	}
	d := e.Details()
	if e.Code != code || d.Ran != ran {
		t.Errorf("code %d, ran %q, want %d, %q: %v", e.Code, d.Ran, code, ran, err)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not contain %q", err, s)
		}
	}
	if strings.Contains(err.Error()+string(e.Data), secret) {
		t.Errorf("the error contains the secret: %v %s", err, e.Data)
	}
	return d
}

// eventually polls, since the awaited change happens in the server.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("condition not met: %s", what)
		}
	}
}

func reply(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

// ended is a sink that sends each reply to the channel.
type ended chan jsonrpc.Reply

func (e ended) Deliver(_ *jsonrpc.Exchange, r jsonrpc.Reply) { e <- r }

// mcp is a server for the part of streamable HTTP that these tests need.
type mcp struct {
	t   testing.TB
	srv *httptest.Server
	*pipes

	// What a test may set before it starts a client.
	lose       func(w http.ResponseWriter, r *request)                  // answers for a session that is not known; default 404
	call       func(w http.ResponseWriter, r *request)                  // answers everything but the handshake
	get        func(w http.ResponseWriter, r *http.Request)             // GET; default 405
	beforeInit func(w http.ResponseWriter, r *request, n int) (ok bool) // called before the nth answer to initialize, from 1

	mu       sync.Mutex
	n        int // sessions so far
	sessions map[string]bool
	received []*request
	deleted  []string
}

func newMCP(t testing.TB) *mcp {
	m := &mcp{t: t, sessions: map[string]bool{}}
	m.srv = httptest.NewServer(m)
	t.Cleanup(m.srv.Close)
	m.defaults()
	return m
}

// newPipedMCP is newMCP without a network, for a synctest bubble.
func newPipedMCP(t testing.TB) *mcp {
	m := &mcp{t: t, sessions: map[string]bool{}, pipes: &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}}
	m.srv = httptest.NewUnstartedServer(m)
	m.srv.Listener.Close()
	m.srv.Listener = m.pipes
	m.srv.Start()
	t.Cleanup(m.srv.Close)
	m.defaults()
	return m
}

// pipes is a listener and what dials it.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once // for closed: a server closes its listener twice
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed: // a Transport may still dial for a request that has ended
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *mcp) defaults() {
	m.lose = func(w http.ResponseWriter, r *request) { http.Error(w, "session not found", http.StatusNotFound) }
	m.call = func(w http.ResponseWriter, r *request) { reply(w, r.ID, `{"ok":true}`) }
	m.get = func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusMethodNotAllowed) }
}

func (m *mcp) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	r := parse(m.t, hr)
	id := hr.Header.Get("Mcp-Session-Id")
	m.mu.Lock()
	m.received = append(m.received, r)
	known := m.sessions[id]
	m.mu.Unlock()
	switch {
	case r.Method == "initialize":
		m.initialize(w, r)
	case !known:
		m.lose(w, r)
	case hr.Method == http.MethodGet:
		m.get(w, hr)
	case hr.Method == http.MethodDelete:
		m.mu.Lock()
		m.deleted = append(m.deleted, id)
		m.mu.Unlock()
	case r.ID == nil || r.Method == "":
		w.WriteHeader(http.StatusAccepted)
	default:
		m.call(w, r)
	}
}

func (m *mcp) initialize(w http.ResponseWriter, r *request) {
	m.mu.Lock()
	m.n++
	n := m.n
	m.mu.Unlock()
	if m.beforeInit != nil && !m.beforeInit(w, r, n) {
		return
	}
	id := fmt.Sprintf("session-%d", n)
	m.mu.Lock()
	m.sessions[id] = true
	m.mu.Unlock()
	w.Header().Set("Mcp-Session-Id", id)
	reply(w, r.ID, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"}}`)
}

// awaitDeleted waits until exactly this session is deleted: a client that ends waits for the answer for two seconds only.
func (m *mcp) awaitDeleted(id string) {
	m.t.Helper()
	eventually(m.t, "a session is deleted", func() bool { m.mu.Lock(); defer m.mu.Unlock(); return len(m.deleted) > 0 })
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(m.deleted, []string{id}) {
		m.t.Errorf("deleted %q, want %s", m.deleted, id)
	}
}

// loseSessions removes all sessions, as a restart does.
func (m *mcp) loseSessions() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.sessions)
}

// requests returns the requests received with this method.
func (m *mcp) requests(method string) (out []*request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.received {
		if r.Method == method {
			out = append(out, r)
		}
	}
	return out
}

const hello = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"},"agent_version":"1","n":9007199254740993}`

// connect starts a client and performs the handshake.
func (m *mcp) connect(cfg Config) *runningConn {
	m.t.Helper()
	cfg.URL, cfg.Dialect = m.srv.URL+"/"+secret+"/mcp", manifest.MCP
	cfg.Headers = map[string]string{"Authorization": "Bearer " + secret}
	if m.pipes != nil {
		cfg.Client = &http.Client{Transport: &http.Transport{DialContext: m.pipes.dial}}
	}
	c := start(m.t, cfg)
	handshake(m.t, c)
	eventually(m.t, "the client listens", func() bool {
		return slices.ContainsFunc(m.requests(""), func(r *request) bool { return r.HTTP.Method == http.MethodGet })
	})
	return c
}

func handshake(t testing.TB, c *runningConn) {
	t.Helper()
	if _, err := c.Call(soon(t), "initialize", json.RawMessage(hello)); err != nil {
		t.Fatal(err)
	}
	if err := c.Notify(initialized, nil); err != nil {
		t.Fatal(err)
	}
}

// events begins an answer of server-sent events.
func events(w http.ResponseWriter) (send func(format string, args ...any)) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	flush := http.NewResponseController(w).Flush
	flush()
	return func(format string, args ...any) {
		fmt.Fprintf(w, format, args...)
		flush()
	}
}

// notifications collects the notifications that a Conn passes on.
type notifications struct {
	mu  sync.Mutex
	all []string
}

func (h *notifications) add(method string, params []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, strings.TrimSpace(method+" "+string(params)))
}

func (h *notifications) list() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.all...)
}

func (h *notifications) has(s string) bool {
	for _, have := range h.list() {
		if have == s {
			return true
		}
	}
	return false
}
