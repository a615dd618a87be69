package door

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// The limits of sessions of the legacy era.
const (
	sessionIdle  = 24 * time.Hour  // without a request or a stream: many clients do not begin another session by themselves
	replaceAfter = time.Minute     // the same, after which another session may take its place
	resumeTime   = 5 * time.Minute // for which an ended stream is remembered
	maxStreams   = 64              // that a session remembers
)

// session is a session of the legacy era over HTTP.
type session struct {
	id       string
	client   *client
	numbered bool // the client supports events with ids
	all      *sessions
	ctx      context.Context
	cancel   context.CancelCauseFunc
	main     *stream // of the GET request
	unlisten func()

	mu      sync.Mutex
	streams map[string]*stream // of POST requests, if more than a result is sent
	count   int                // of them, since the beginning
	open    int                // requests
	reader  int                // number of the last GET request; an earlier one ends
	read    int                // number of the first event that no GET request has got
	used    time.Time
}

// sessions are the sessions of a server, by id.
type sessions struct {
	ctx        context.Context // of all sessions
	max        int
	remembered atomic.Int64 // bytes, by the streams of answers

	mu  sync.Mutex
	all map[string]*session
}

func newSessions(ctx context.Context, limit int) *sessions {
	return &sessions{ctx: ctx, max: limit, all: map[string]*session{}}
}

// add makes a session. If there are too many, it takes the place of the one that was not used for longest, of any token; if half
// of them are those of the client's token, of one of these. ok is false if all were used within a minute.
func (s *sessions) add(c *client, numbered bool) (*session, bool) {
	n := &session{id: rand.Text(), client: c, all: s, numbered: numbered, streams: map[string]*stream{}, used: time.Now(), main: newStream("main", numbered)}
	sum := sha256.Sum256([]byte(n.id)) // the id itself lets its owner in
	c.session = hex.EncodeToString(sum[:8])
	n.ctx, n.cancel = context.WithCancelCause(s.ctx) // a session outlives the request that began it
	n.unlisten = c.notifyClient(func(message []byte) { n.main.add(message) })
	s.mu.Lock()
	own := c.principal != "" && s.countLocked(c.principal) >= max(1, s.max/2)
	full := len(s.all) >= s.max || own
	var idle *session
	if full {
		idle = s.idlestLocked(func(n *session) bool { return !own || n.client.principal == c.principal }, time.Now())
	}
	if idle != nil {
		delete(s.all, idle.id) // no request finds it any more
	}
	if !full || idle != nil {
		s.all[n.id] = n
	}
	s.mu.Unlock()
	switch {
	case idle != nil:
		s.end(idle)
	case full:
		n.cancel(nil)
		n.unlisten()
		return nil, false
	}
	return n, true
}

// countLocked is the number of sessions of a principal. The caller holds mu.
func (s *sessions) countLocked(principal string) (n int) {
	for _, one := range s.all {
		if one.client.principal == principal {
			n++
		}
	}
	return n
}

// idlestLocked is the session that was not used for longest, but at least for a minute; nil if there is none. The caller holds mu.
func (s *sessions) idlestLocked(among func(*session) bool, now time.Time) (idlest *session) {
	last := now.Add(-replaceAfter)
	for _, n := range s.all {
		n.mu.Lock()
		if among(n) && n.open == 0 && n.used.Before(last) {
			idlest, last = n, n.used
		}
		n.mu.Unlock()
	}
	return idlest
}

func (s *sessions) get(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

func (s *sessions) number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

func (s *sessions) end(n *session) {
	s.mu.Lock()
	delete(s.all, n.id)
	s.mu.Unlock()
	n.cancel(errClosed)
	n.unlisten()
	n.main.end()
	n.forget(func(*stream) bool { return true })
}

func (s *sessions) endAll() {
	s.mu.Lock()
	all := make([]*session, 0, len(s.all))
	for _, n := range s.all {
		all = append(all, n)
	}
	s.mu.Unlock()
	for _, n := range all {
		s.end(n)
	}
}

// endStreams ends the streams of GET requests: the clients connect again, to the server that follows this one.
func (s *sessions) endStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.all {
		n.main.end()
	}
}

// sweep ends the sessions that are not in use and have not been for long, or whose client is not permitted any more. It removes old
// streams.
func (s *sessions) sweep(now time.Time, permits func(*client) bool) {
	s.mu.Lock()
	var ends []*session
	for _, n := range s.all {
		if open, idle := n.sweep(now); open == 0 && (idle > sessionIdle || !permits(n.client)) {
			ends = append(ends, n)
		}
	}
	s.mu.Unlock()
	for _, n := range ends {
		s.end(n)
	}
}

func (n *session) sweep(now time.Time) (open int, idle time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgetLocked(func(st *stream) bool { return st.isForgotten(now) })
	return n.open, now.Sub(n.used)
}

// use registers a request of the session, until the returned function is called.
func (n *session) use() (done func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.open--
		n.used = time.Now()
	}
}

// newStream returns a stream for the answer to a POST request. A session with too many keeps only running ones.
func (n *session) newStream() *stream {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	s := newStream(strconv.Itoa(n.count), n.numbered)
	s.all = &n.all.remembered
	if len(n.streams) >= maxStreams {
		n.forgetLocked(func(old *stream) bool { return old.isForgotten(time.Now().Add(resumeTime)) }) // it has ended
	}
	if s.gone = !n.numbered || len(n.streams) >= maxStreams || n.ctx.Err() != nil; !s.gone {
		n.streams[s.id] = s
	}
	return s
}

// forget forgets streams of answers.
func (n *session) forget(which func(*stream) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgetLocked(which)
}

// forgetLocked is forget for a caller that holds mu.
func (n *session) forgetLocked(which func(*stream) bool) {
	for id, s := range n.streams {
		if which(s) {
			delete(n.streams, id)
			s.forget()
		}
	}
}

// find returns the session of a request. Without a session, it has answered the request.
func (x *exchange) find() *session {
	id := x.r.Header.Get(mcp.HeaderSession)
	if id == "" {
		x.refuse(http.StatusBadRequest, "the header Mcp-Session-Id is missing: send initialize first")
		return nil
	}
	n := x.h.sessions.get(id)
	if n == nil || n.client.principal != x.token.Name || n.client.natsContext != x.token.Context || n.client.view != x.view {
		// Claude Code begins another session only if the status is 404 and the code is that of the SDKs.
		x.error(http.StatusNotFound, nil, &rpc.Error{Code: -32001, Message: "the session does not exist any more: send initialize again"})
		return nil
	}
	return n
}

// legacy answers a request of the legacy era. A closed connection does not cancel it: the client can fetch the answer
// with Last-Event-ID.
func (x *exchange) legacy(q *request) {
	if q.method == mcp.MethodInitialize {
		x.initialize(q)
		return
	}
	n := x.find()
	if n == nil {
		return
	}
	defer n.use()()
	p := &reply{x: x, session: n}
	q.notify = p.notify
	if !n.client.isQuick(q) {
		p.keepOpen()
	}
	p.end(http.StatusOK, n.client.answer(n.ctx, q))
}

func (x *exchange) initialize(q *request) {
	if isClosed(x.h.drain) {
		x.refuse(http.StatusServiceUnavailable, "the server is stopping: connect again")
		return
	}
	c := x.newClient()
	result, e := c.serve(x.r.Context(), q)
	if e != nil {
		x.error(http.StatusOK, q.id, e)
		return
	}
	at, _ := jsonrpc.Member(result, "protocolVersion")
	n, ok := x.h.sessions.add(c, string(at.In(result)) == `"`+mcp.LatestLegacy+`"`)
	if !ok {
		x.tooMany("sessions")
		return
	}
	c.becomesLegacy(mcp.EraLegacy) // notifications are sent in the session's stream, which cannot precede this answer
	x.w.Header().Set(mcp.HeaderSession, n.id)
	writeJSON(x.w, http.StatusOK, jsonrpc.AppendResult(nil, q.id, result))
}

// notification handles a message that is not answered.
func (x *exchange) notification(env *jsonrpc.Envelope) {
	meta, e := mcp.ParseParams(env.Params)
	modern := e == nil && meta.Meta.ProtocolVersion != nil || x.r.Header.Get(mcp.HeaderVersion) == mcp.Modern
	if !modern { // a modern one has nothing to refer to
		n := x.find()
		if n == nil {
			return
		}
		defer n.use()()
		if env.IsNotification() {
			n.client.notification(env.MethodName(), env.Params)
		}
	}
	x.w.WriteHeader(http.StatusAccepted)
}

// session handles GET and DELETE.
func (x *exchange) session() {
	if x.r.Method == http.MethodGet {
		if _, events := x.accepts(); !events {
			x.refuse(http.StatusNotAcceptable, "Accept must include text/event-stream")
			return
		}
	}
	n := x.find()
	if n == nil {
		return
	}
	if x.r.Method == http.MethodDelete {
		x.h.sessions.end(n)
		x.w.WriteHeader(http.StatusNoContent)
		return
	}
	defer n.use()()
	if x.refusesUnread() {
		return
	}
	end, ok := x.usage.addStream()
	if !ok {
		x.tooMany("streams")
		return
	}
	defer end()
	s, from := n.main, unread
	if last := x.r.Header.Get(mcp.HeaderLastEventID); last != "" {
		var ok bool
		if s, from, ok = n.resume(last); !ok {
			x.error(http.StatusBadRequest, nil, &rpc.Error{Code: rpc.CodeInvalidRequest, Message: "the stream of Last-Event-ID does not exist any more"})
			return
		}
		if _, next, ended, _ := s.from(from); s != n.main && ended && from >= next {
			x.w.WriteHeader(http.StatusNoContent) // to an empty stream without an answer, SDKs would reconnect again and again
			return
		}
	}
	x.events(n, s, from)
}

// unread is the first event that no GET request has received: a client without event ids continues there.
const unread = -1

// resume finds the stream of an event id, and the number of the event after it.
func (n *session) resume(last string) (s *stream, from int, ok bool) {
	id, number, _ := strings.Cut(last, "-")
	at, err := strconv.Atoi(number)
	if err != nil || at < -1 {
		return nil, 0, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if s = n.streams[id]; id == n.main.id {
		s = n.main
	}
	return s, at + 1, s != nil
}

// events sends the events of a stream to a GET request. Of several requests for the main stream the last one gets it.
func (x *exchange) events(n *session, s *stream, from int) {
	isReplaced, sent := func() bool { return false }, func(int) {}
	if s == n.main {
		sent = func(next int) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.read = max(n.read, next)
		}
		n.mu.Lock()
		n.reader++
		reader := n.reader
		if from == unread {
			from = n.read
		}
		n.mu.Unlock()
		s.wakeReaders() // the one before ends
		isReplaced = func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.reader != reader
		}
	}
	x.copyEvents(s, from, n.ctx, isReplaced, sent)
}

// copyEvents sends the events of a stream until it ends, its session ends, or one of the other conditions holds. It calls sent with the number of
// the next event after those that it has sent.
func (x *exchange) copyEvents(s *stream, from int, session context.Context, isReplaced func() bool, sent func(next int)) {
	startEvents(x.w)
	out := &reply{x: x, streaming: true}
	defer out.extend()
	if s.numbered {
		out.write(appendEvent(nil, s.eventID(from-1), nil))
	}
	out.flush()
	tick := time.NewTicker(keepAliveEvery)
	defer tick.Stop()
	gone, over := x.r.Context().Done(), session.Done()
	for {
		events, next, ended, wake := s.from(from)
		if isReplaced() { // the other request gets them
			return
		}
		from = next - len(events)
		for _, message := range events {
			out.write(appendEvent(nil, s.eventID(from), message))
			from++
		}
		if out.flush(); !out.failed {
			sent(from)
		}
		if ended || out.failed {
			return
		}
		select {
		case <-wake:
		case <-tick.C:
			if !x.isStillPermitted() { // the token was removed or has expired
				return
			}
			out.write([]byte(":\n\n"))
		case <-gone:
			if context.Cause(x.r.Context()) != errDraining {
				return
			}
			gone, over = nil, nil // the server stops: the result that says so follows, and the stream ends
		case <-over:
			if context.Cause(session) != errDraining {
				return
			}
			gone, over = nil, nil
		}
	}
}
