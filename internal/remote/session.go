package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

const (
	openTimeout   = 30 * time.Second // for opening a session again
	deleteTimeout = 2 * time.Second  // for the DELETE that ends a session

	// After maxShort sessions in a row that were each lost within shortSession, no other is opened. The bridge lists the
	// tools again in each session, which may find the next session lost, and so on without end.
	shortSession = 10 * time.Second
	maxShort     = 3
)

// negotiated is the result of the handshake. It is guarded by the Conn's mutex.
type negotiated struct {
	dialect manifest.Dialect // auto until initialize is answered
	session *session         // of MCP, once initialize is answered
	params  []byte           // the params of initialize, for opening a session again
	opening *opening         // not nil while a session is being opened again
}

// session is a session with an MCP server. It has no id if the server does not use sessions.
type session struct {
	id, version string
	since       time.Time
	short       int // number of short sessions in a row before this one

	ready  chan struct{}      // closed when the server has accepted notifications/initialized; nil: not sent yet
	retire context.CancelFunc // ends the stream of the server's own messages
}

// opening is a session that is being opened again, shared by all calls that wait for it.
type opening struct {
	done    chan struct{}
	old     *session
	session *session
	err     error
}

// errShort ends Run after too many short sessions.
var errShort = fmt.Errorf("the server loses each session within %s: if several replicas share one address, all requests of a session must reach the same replica", shortSession)

// newSession returns the session of an answer to initialize. An id or version that is not valid in a header is ignored.
func newSession(h http.Header, result []byte) *session {
	s := &session{id: h.Get("Mcp-Session-Id"), version: protocolOf(result), since: time.Now()}
	if !headerSafe(s.id) {
		s.id = ""
	}
	return s
}

// protocolOf returns the MCP version in a result of initialize, or "" if it is not a result of MCP.
func protocolOf(result []byte) (version string) {
	at, ok := jsonrpc.Member(result, "protocolVersion")
	if !ok || json.Unmarshal(at.In(result), &version) != nil || len(version) > 64 || !headerSafe(version) {
		return ""
	}
	return version
}

// header returns the headers of a request in s. s is nil in the ext dialect and before the handshake.
func (s *session) header(accept string) http.Header {
	h := http.Header{"Accept": {accept}}
	if s == nil {
		return h
	}
	if s.id != "" {
		h.Set("Mcp-Session-Id", s.id)
	}
	if s.version != "" {
		h.Set("Mcp-Protocol-Version", s.version)
	}
	return h
}

// lostBy reports whether r, the answer to the request id, means that the server has lost s: a 404, as specified by MCP, unless
// it reports an unknown method; a 400 that mentions the session, as many servers answer after a restart; or the 401 of rmcp. An
// answer with the request's id is the request's own fault, unless its code is one that servers use for a lost session.
func (s *session) lostBy(r *refusal, id uint64) bool {
	if s == nil || s.id == "" {
		return false
	}
	at, _ := jsonrpc.Member(r.env.Error, "code")
	code := string(at.In(r.env.Error))
	if answers, ok := jsonrpc.ParseID(r.env.ID); ok && answers == id && code != "-32001" && code != "-32600" {
		return false
	}
	switch r.status {
	case http.StatusNotFound:
		return code != "-32601"
	case http.StatusBadRequest:
		text := bytes.ToLower(r.raw)
		return bytes.Contains(text, []byte("session")) || bytes.Contains(text, []byte("not initialized"))
	case http.StatusUnauthorized:
		return bytes.Contains(bytes.ToLower(r.raw), []byte("session not found"))
	}
	return false
}

func lost(err error) bool {
	_, ok := errors.AsType[*lostError](err)
	return ok
}

// accepts returns the Accept header. In the ext dialect an answer is always one JSON document.
func (n *negotiated) accepts() string {
	if n.dialect == manifest.Ext {
		return jsonOnly
	}
	return bothKinds
}

// opened stores the dialect and the session from the answer to initialize.
func (n *negotiated) opened(pc *pendingCall, r *jsonrpc.Reply) {
	result, err := r.Result()
	if err != nil || pc.again {
		return
	}
	if n.dialect == manifest.Auto {
		n.dialect = manifest.Ext
		if protocolOf(result) != "" {
			n.dialect = manifest.MCP
		}
	}
	if n.dialect == manifest.MCP {
		n.params = bytes.Clone(pc.x.Params)
		n.replace(newSession(pc.header, result))
	}
}

// replace makes s the current session.
func (n *negotiated) replace(s *session) {
	if old := n.session; old != nil && old.retire != nil {
		old.retire()
	}
	n.session = s
}

// session returns the session for pc, when the server is ready for calls; nil for initialize and in the ext dialect.
func (c *Conn) session(ctx context.Context, pc *pendingCall) (*session, error) {
	if pc.method == "initialize" {
		return nil, nil
	}
	c.mu.Lock()
	s, o := c.negotiated.session, c.negotiated.opening
	var ready chan struct{}
	if s != nil {
		ready = s.ready
	}
	c.mu.Unlock()
	if o != nil {
		return o.wait(ctx)
	}
	if ready != nil {
		select {
		case <-ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s, nil
}

func (o *opening) wait(ctx context.Context) (*session, error) {
	select {
	case <-o.done:
		return o.session, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// reopen returns the session after old, which the server has lost. The first call that finds it lost starts opening
// another session; all others wait for the same one.
func (c *Conn) reopen(ctx context.Context, old *session) (*session, error) {
	c.mu.Lock()
	o := c.negotiated.opening
	switch {
	case c.closed != nil:
		defer c.mu.Unlock()
		return nil, c.closed
	case o == nil && c.negotiated.session != old:
		defer c.mu.Unlock()
		return c.negotiated.session, nil
	case o == nil:
		o = &opening{done: make(chan struct{}), old: old}
		c.negotiated.opening = o
		// On a goroutine of Run: the call that found the session lost may be cancelled while others wait.
		c.startLocked(func(ctx context.Context) { c.open(ctx, o) })
	}
	c.mu.Unlock()
	return o.wait(ctx)
}

// open opens a session again, reports the result to all that wait, and reads the session's event stream.
func (c *Conn) open(ctx context.Context, o *opening) {
	s, result, err := c.initialize(ctx, o.old)
	if err != nil {
		o.err = cannotReopen(err)
	}
	o.session = s
	if err == nil && c.reopened != nil {
		c.reopened(result) // before another reopening can begin, so that the last result is the newest
	}
	c.mu.Lock()
	c.negotiated.opening = nil
	if err == nil {
		c.negotiated.replace(s)
	}
	c.mu.Unlock()
	close(o.done)
	if err == nil {
		c.log.Info("the server had lost the session; it was opened again")
		c.notifier.notification(listChanged, nil)
		c.listen(ctx, s)
	} else if final(err) {
		c.end(o.err)
	}
}

// cannotReopen returns the error for calls that wait for a session which could not be opened. They did not run.
func cannotReopen(err error) *rpc.Error {
	e := rpc.AsError(err)
	d := rpc.Details{Ran: rpc.RanNo, Reason: e.Message, RetryAfterMS: e.Details().RetryAfterMS}
	return rpc.NewError(rpc.CodeUnavailable, d, "the session was lost and cannot be opened again: %s", e.Message)
}

// finalError is an error of initialize that a retry would not change.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

func final(err error) bool {
	if s, ok := errors.AsType[*statusError](err); ok {
		return !temporary(s.status)
	}
	_, ok := errors.AsType[finalError](err)
	return ok
}

// initialize opens the session after old with the params of the original handshake, and returns it with the result.
func (c *Conn) initialize(ctx context.Context, old *session) (*session, json.RawMessage, error) {
	short := 0
	if time.Since(old.since) < shortSession {
		if short = old.short + 1; short > maxShort {
			return nil, nil, finalError{errShort}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	w := jsonrpc.NewWaiter()
	c.mu.Lock()
	if c.closed != nil {
		defer c.mu.Unlock()
		return nil, nil, c.closed
	}
	pc := c.pending.add(&jsonrpc.Exchange{Method: "initialize", Params: c.negotiated.params, Sink: w})
	pc.again = true
	c.mu.Unlock()
	if err := c.post(ctx, pc, nil); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pending.remove(pc)
		return nil, nil, err
	}
	result, err := w.Result()
	if err != nil {
		return nil, nil, finalError{err}
	}
	s := newSession(pc.header, result)
	s.short = short
	if s.version == "" {
		return nil, nil, finalError{errors.New("the answer to initialize has no protocolVersion any more")}
	}
	if err := c.at.postNote(ctx, s, jsonrpc.AppendRequest(nil, nil, initialized, nil)); err != nil {
		if ctx.Err() != nil {
			return nil, nil, err
		}
		c.log.Debug("a notification could not be sent", "error", err) // as after the first handshake: some servers refuse it
	}
	return s, result, nil
}

// deleteSession ends the session s, which may be nil, if the server supports that.
func (e *endpoint) deleteSession(ctx context.Context, s *session) error {
	if s == nil || s.id == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	resp, err := e.do(ctx, http.MethodDelete, nil, s.header(bothKinds))
	if err != nil {
		return e.fault(err, rpc.RanMaybe)
	}
	return resp.Body.Close()
}
