package door

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/rawio"
	"github.com/extmesh/extmesh/pkg/rpc"
	"golang.org/x/time/rate"
)

// HTTPOptions are the settings of the HTTP transport.
type HTTPOptions struct {
	Tokens  *Tokens  // nil: clients do not authenticate
	Dial    Dial     // for tokens with NATS credentials of their own
	Hosts   []string // host names that the header Host may have, in addition to the names of loopback
	Origins []string // web pages that may use the server: https://app.example.com, or https://*.example.com
	AnyHost bool     // do not check the header Host, because the listener cannot be reached by a browser on this host

	MaxBody     int64         // bytes; default 4 MiB
	MaxSessions int           // of the legacy era; default 1000
	Rate        int           // requests per second of one client or token, of which 4 s can come at once; 0: no limit
	Drain       time.Duration // for calls in flight when the server stops. Default 30 s; < 0: none
	TLS         *tls.Config   // nil: plain HTTP

	lastAnswers time.Duration // to write the answers of cancelled calls; default 3 s
}

// The times of HTTP.
const (
	headerTimeout  = 5 * time.Second
	bodyTimeout    = 30 * time.Second // from the first byte of the request
	idleTimeout    = 11 * time.Minute // more than proxies keep a connection, which would send a request into the closing one
	replyTimeout   = time.Minute      // to write a JSON answer; more for a large one
	eventTimeout   = 10 * time.Second // to write one event
	keepAliveEvery = 15 * time.Second
	sweepEvery     = time.Minute
)

// httpServer serves clients over HTTP.
type httpServer struct {
	door     *Door
	opt      HTTPOptions
	sessions *sessions
	users    users
	dialled  *identities
	log      map[string]*rate.Sometimes // by the reason of a refusal
	drain    chan struct{}              // closed when the server stops: streams end
	calls    context.Context            // of all requests and sessions
	cancel   context.CancelCauseFunc    // of calls
}

func (d *Door) newHTTPServer(o HTTPOptions) *httpServer {
	o.MaxBody = cmp.Or(o.MaxBody, 4<<20)
	o.MaxSessions = cmp.Or(o.MaxSessions, 1000)
	o.Drain = max(0, cmp.Or(o.Drain, 30*time.Second))
	o.lastAnswers = cmp.Or(o.lastAnswers, 3*time.Second)
	h := &httpServer{door: d, opt: o, drain: make(chan struct{}), users: users{rate: o.Rate}, log: map[string]*rate.Sometimes{}}
	h.calls, h.cancel = context.WithCancelCause(context.Background()) // when the server stops, it completes the calls in flight
	h.sessions = newSessions(h.calls, o.MaxSessions)
	for _, reason := range refusals {
		h.log[reason] = &rate.Sometimes{Interval: time.Second}
	}
	h.dialled = &identities{door: d, dial: o.Dial, all: map[string]*identity{}}
	d.metrics.web.Store(h)
	return h
}

// ServeHTTP serves clients on l until ctx ends, and then completes the calls in flight. It returns nil then, and closes
// l.
func (d *Door) ServeHTTP(ctx context.Context, l net.Listener, o HTTPOptions) error {
	h := d.newHTTPServer(o)
	defer h.dialled.close()
	defer h.sessions.endAll()
	defer h.cancel(nil)
	srv := &http.Server{
		Handler: h, BaseContext: func(net.Listener) context.Context { return h.calls },
		ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 32 << 10, TLSConfig: o.TLS,
		ErrorLog: slog.NewLogLogger(d.opt.Logger.Handler(), slog.LevelDebug), // a failed TLS handshake for each port scan
	}
	l = rawio.Listener{Listener: l}
	ended := make(chan error, 1)
	go func() { // ends when the server is shut down
		if o.TLS != nil {
			ended <- srv.ServeTLS(l, "", "")
		} else {
			ended <- srv.Serve(l)
		}
	}()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case now := <-sweep.C:
			h.sessions.sweep(now, h.permits)
		case <-ctx.Done():
			h.shutdown(context.WithoutCancel(ctx), srv)
			<-ended
			return nil
		}
	}
}

// shutdown ends the streams and waits for the calls in flight. Those that take longer than Drain are cancelled, and their
// clients get a result that says so.
func (h *httpServer) shutdown(ctx context.Context, srv *http.Server) {
	close(h.drain)
	h.sessions.endStreams()
	wait := func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return srv.Shutdown(ctx)
	}
	if wait(h.opt.Drain) == nil {
		return
	}
	h.cancel(errDraining)
	if wait(h.opt.lastAnswers) != nil {
		h.sessions.endAll()
		_ = srv.Close() // only so that the connections are closed
	}
}

// fault is a request that is refused before its body is handled.
type fault struct {
	status int
	text   string
	reason string // for metrics and the log; "" if the client has only made a mistake
}

func (f *fault) write(w http.ResponseWriter) {
	writeJSON(w, f.status, jsonrpc.AppendError(nil, nil, &rpc.Error{Code: rpc.CodeInvalidRequest, Message: f.text}))
}

func (h *httpServer) serve(w *recorder, r *http.Request) {
	if f := h.checkOrigin(w, r); f != nil {
		h.refuse(w, r, f, "")
		return
	}
	view, ok := h.viewOf(r.URL.Path)
	if !ok {
		h.notFound(w, r.URL.Path)
		return
	}
	if r.Method == http.MethodOptions {
		h.preflight(w, r)
		return
	}
	token, f := h.authenticate(w, r, view)
	w.principal = token.Name
	x := &exchange{h: h, w: w, r: r, view: view, token: token, usage: h.users.of(token.Name)}
	if f == nil {
		f = x.checkRate()
	}
	if f != nil {
		h.refuse(w, r, f, token.Name)
		return
	}
	switch {
	case r.Method == http.MethodPost:
		x.post()
	case (r.Method == http.MethodGet || r.Method == http.MethodDelete) && r.Header.Get(mcp.HeaderVersion) != mcp.Modern:
		x.session()
	case r.Method == http.MethodGet || r.Method == http.MethodDelete:
		w.Header().Set("Allow", "POST")
		(&fault{status: http.StatusMethodNotAllowed, text: "the protocol version " + mcp.Modern + " has only POST"}).write(w)
	default:
		w.Header().Set("Allow", "POST, GET, DELETE")
		(&fault{status: http.StatusMethodNotAllowed, text: "want POST, GET or DELETE"}).write(w)
	}
}

// notFound refuses a path without a view. After a 401, many clients try to register with OAuth on other paths, and show the
// answer only if it is an error of OAuth.
func (h *httpServer) notFound(w http.ResponseWriter, path string) {
	const text = "not found: the MCP endpoint is /mcp"
	switch {
	case strings.HasPrefix(path, "/mcp/"):
		(&fault{status: http.StatusNotFound, text: "there is no such profile: the URL is /mcp, or /mcp/ with the name of a profile"}).write(w)
	case h.opt.Tokens == nil:
		(&fault{status: http.StatusNotFound, text: text}).write(w)
	default:
		writeJSON(w, http.StatusNotFound, []byte(`{"error":"invalid_request","error_description":"`+text+
			`. This server has no OAuth: its bearer token is missing, unknown or expired"}`))
	}
}

// viewOf returns the view of a path: /mcp, or /mcp/<profile>.
func (h *httpServer) viewOf(path string) (*viewState, bool) {
	path = strings.TrimSuffix(path, "/")
	if path == "/mcp" {
		return h.door.view, true
	}
	name, ok := strings.CutPrefix(path, "/mcp/")
	if !ok {
		return nil, false
	}
	v, ok := h.door.profiles[name]
	return v, ok
}

// exchange is one HTTP request.
type exchange struct {
	h     *httpServer
	w     *recorder
	r     *http.Request
	view  *viewState
	token config.Token // zero: the server does not authenticate
	usage *usage
}

// newClient makes the client of the exchange.
func (x *exchange) newClient() *client {
	c := x.h.door.newClient(x.view, x.token.Name)
	c.natsContext, c.identities = x.token.Context, x.h.dialled
	if x.token.Name != "" {
		c.usage = x.usage
	}
	return c
}

func (x *exchange) refuse(status int, text string) { (&fault{status: status, text: text}).write(x.w) }

// answer writes a JSON-RPC error.
func (x *exchange) error(status int, id []byte, e *rpc.Error) {
	writeJSON(x.w, status, jsonrpc.AppendError(nil, id, e))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(replyTimeout + time.Duration(len(body))*time.Second/slowest))
	h := w.Header()
	h["Content-Type"] = jsonType
	if len(body) > 1024 { // net/http sends a small one with its length, and others in chunks
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

var jsonType = []string{"application/json"}

// post handles a message of a client.
func (x *exchange) post() {
	if f := x.checkTypes(); f != nil {
		f.write(x.w)
		return
	}
	body, f := x.readBody()
	if f != nil { // without the id, an SDK ends the whole session
		x.error(f.status, jsonrpc.IDIn(body), &rpc.Error{Code: rpc.CodeInvalidRequest, Message: f.text})
		return
	}
	env, err := jsonrpc.Scan(body)
	switch {
	case len(body) > 0 && body[0] == '[':
		x.error(http.StatusBadRequest, nil, &rpc.Error{Code: rpc.CodeInvalidRequest, Message: "batches are not supported: send one message per request"})
		return
	case err != nil || !utf8.Valid(body):
		text := "the body is not UTF-8"
		if err != nil {
			text = "the body is not JSON: " + err.Error()
		}
		x.error(http.StatusBadRequest, nil, &rpc.Error{Code: rpc.CodeParse, Message: text})
		return
	case env.IsNotification() || env.IsResponse():
		x.notification(&env)
		return
	}
	if e := checkRequest(&env); e != nil {
		x.error(http.StatusBadRequest, validID(env.ID), e)
		return
	}
	x.request(&request{id: env.ID, method: env.MethodName(), raw: env.Params})
}

// readBody reads the body, up to the limit. With a fault it returns how the body begins.
func (x *exchange) readBody() ([]byte, *fault) {
	limit := x.h.opt.MaxBody
	var body []byte
	var err error
	if x.r.ContentLength > limit {
		if x.r.Header.Get("Expect") == "" { // otherwise net/http would request the body
			body, _ = io.ReadAll(io.LimitReader(x.r.Body, jsonrpc.IDWithin))
		}
		return body, x.tooLarge()
	}
	if n := x.r.ContentLength; n >= 0 && n <= 64<<10 { // of a larger one, only what has arrived takes memory
		body = make([]byte, n)
		var got int
		got, err = io.ReadFull(x.r.Body, body)
		body = body[:got]
	} else {
		body, err = io.ReadAll(io.LimitReader(x.r.Body, limit+1))
	}
	switch {
	case int64(len(body)) > limit:
		return body, x.tooLarge()
	case err != nil:
		x.w.Header().Set("Connection", "close")
		return body, &fault{status: http.StatusBadRequest, text: "the body is incomplete"}
	}
	_ = x.r.Body.Close() // it has been read: net/http need not look for the rest of it
	return bytes.TrimSpace(body), nil
}

// maxDiscarded is how much of a body that is too large is read all the same.
const maxDiscarded = 16 << 20

// tooLarge reads the rest of the body, unless that is very much: a proxy or a client that is still writing when the connection is closed
// loses the answer.
func (x *exchange) tooLarge() *fault {
	if x.r.Header.Get("Expect") == "" && x.r.ContentLength <= maxDiscarded {
		_, _ = io.CopyN(io.Discard, x.r.Body, maxDiscarded)
	}
	x.w.Header().Set("Connection", "close")
	return &fault{status: http.StatusRequestEntityTooLarge, text: "the body is larger than " + bytesText(x.h.opt.MaxBody) + ": send less at once"}
}

// request handles a request of either era.
func (x *exchange) request(q *request) {
	header := x.r.Header.Get(mcp.HeaderVersion)
	x.w.note(q)
	if x.refusesUnread() {
		return
	}
	if e := q.parse(); e != nil {
		if other := mcp.CheckVersionHeader(x.r.Header, &q.params); e.Code == mcp.CodeUnsupportedVersion && header != "" && other != nil {
			e = other
		}
		x.error(http.StatusBadRequest, q.id, e)
		return
	}
	x.w.noteTool(q)
	q.traceparent = x.r.Header.Get("Traceparent")
	switch {
	case q.era == mcp.EraModern:
		x.modern(q)
	case q.method == mcp.MethodInitialize: // which negotiates, whatever the header has
		x.legacy(q)
	case header == mcp.Modern:
		x.error(http.StatusBadRequest, q.id, &rpc.Error{Code: rpc.CodeInvalidParams,
			Message: `a request with the protocol version ` + mcp.Modern + ` needs params._meta["` + mcp.MetaProtocolVersion + `"]`})
	case header != "" && !mcp.IsLegacy(header):
		x.error(http.StatusBadRequest, q.id, mcp.UnsupportedVersion(header))
	default:
		x.legacy(q)
	}
}

// refusesUnread refuses a request if too much is being written already.
func (x *exchange) refusesUnread() bool {
	if x.usage.unread.Load() <= maxUnread {
		return false
	}
	x.w.Header().Set("Retry-After", "1")
	x.h.refuse(x.w, x.r, &fault{http.StatusTooManyRequests,
		"earlier answers with this token, or without tokens those to all clients, have not been read: try again later", "rate"}, x.token.Name)
	return true
}

// modern answers a request of the modern era. It is independent of all others, and is cancelled when its connection is
// closed.
func (x *exchange) modern(q *request) {
	if e := mcp.CheckHeaders(x.r.Header, q.method, &q.params, x.schemaOf(q)); e != nil {
		x.error(http.StatusBadRequest, q.id, e)
		return
	}
	c := x.newClient()
	c.calls, c.name = nil, mcp.ClientName(q.params.Meta.ClientInfo)
	_, events := x.accepts()
	if q.method == mcp.MethodListen {
		if !events {
			x.refuse(http.StatusNotAcceptable, "Accept must include text/event-stream")
			return
		}
		x.listen(c, q)
		return
	}
	reply := &reply{x: x}
	q.notify = func([]byte) {} // a client that takes only JSON gets only the result
	if events {
		q.notify = reply.notify
		if !c.isQuick(q) {
			reply.keepOpen()
		}
	}
	result, e := c.serve(x.r.Context(), q)
	switch {
	case e == errNoAnswer:
		reply.end(http.StatusOK, nil)
	case e != nil:
		status := http.StatusOK
		if e.Code == rpc.CodeMethodNotFound && !q.isCall() { // otherwise it is an extension's own error
			status = http.StatusNotFound
		}
		reply.end(status, jsonrpc.AppendError(nil, q.id, e))
	default:
		reply.end(http.StatusOK, jsonrpc.AppendResult(make([]byte, 0, len(result)+len(q.id)+64), q.id, result))
	}
}

// listen answers subscriptions/listen with a stream, which ends when the client closes it or the server stops.
func (x *exchange) listen(c *client, q *request) {
	end, ok := x.usage.addStream()
	if !ok {
		x.tooMany("streams")
		return
	}
	defer end()
	s := newStream("", false)
	q.notify = func(message []byte) { s.add(message) }
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	go func() { // ends with ctx, or when the subscription is refused
		if message := c.answer(ctx, q); message != nil {
			s.add(message)
		}
		s.end()
	}()
	go func() { // ends with ctx
		select {
		case <-x.h.drain:
			cancel(errDraining)
		case <-ctx.Done():
		}
	}()
	x.copyEvents(s, 0, x.r.Context(), func() bool { return false }, func(int) {})
}

var errDraining = errors.New("the server stops")

// schemaOf returns the input schema of the tool that is called, or nil.
func (x *exchange) schemaOf(q *request) []byte {
	if q.method != mcp.MethodCallTool {
		return nil
	}
	name, e := q.params.ToolName()
	if e != nil {
		return nil
	}
	if t := x.view.now.Load().byName[name]; t != nil {
		return t.input
	}
	return nil
}
