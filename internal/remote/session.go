package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

const (
	openTimeout = 30 * time.Second // for opening a session again
	farewell    = 2 * time.Second  // for the DELETE that ends one

	// A session that is lost within shortLife of its opening is a bad sign; after maxShort of them in a row no
	// other is opened. Each has its owner read the tools again, which may well find the next one lost.
	shortLife = 10 * time.Second
	maxShort  = 3
)

// talk is what has been agreed on. It is guarded by the Conn's mutex.
type talk struct {
	dialect manifest.Dialect // auto until initialize is answered
	session *session         // of MCP, once initialize is answered
	params  []byte           // initialize's, to be said again
	opening *opening         // a session being opened again
}

// session is one with an MCP server. One without an id is that of a server that keeps none.
type session struct {
	id, version string
	since       time.Time
	short       int // sessions before it, in a row, that were lost soon

	ready  chan struct{}      // closed when the server has taken notifications/initialized; nil: not sent yet
	retire context.CancelFunc // ends the stream of what the server says unasked
}

// opening is a session being opened again, for all that wait for it.
type opening struct {
	done    chan struct{}
	old     *session
	session *session
	err     error
}

// errShort ends a conversation in which no session lasts.
var errShort = fmt.Errorf("the server loses each session within %s: with several replicas behind one address, all requests of a session have to reach the same one", shortLife)

// newSession reads the answer to initialize. What cannot go into a header is left out.
func newSession(h http.Header, result []byte) *session {
	s := &session{id: h.Get("Mcp-Session-Id"), version: protocolOf(result), since: time.Now()}
	if !headerSafe(s.id) {
		s.id = ""
	}
	return s
}

// protocolOf is the MCP version that a result of initialize names, "" if it is none of MCP's.
func protocolOf(result []byte) (version string) {
	at, ok := rpc.Member(result, "protocolVersion")
	if !ok || json.Unmarshal(at.In(result), &version) != nil || len(version) > 64 || !headerSafe(version) {
		return ""
	}
	return version
}

// header is what a request over s carries, besides what it accepts. A nil session is that of ext, or none yet.
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

// lostBy reports whether r says that the server does not know s: 404, as MCP has it, unless it is about a method
// that is not there; or a 400 about the session, as many servers answer after a restart.
func (s *session) lostBy(r *refusal) bool {
	if s == nil || s.id == "" {
		return false
	}
	switch r.status {
	case http.StatusNotFound:
		at, ok := rpc.Member(r.env.Error, "code")
		return !ok || string(at.In(r.env.Error)) != "-32601"
	case http.StatusBadRequest:
		text := bytes.ToLower(r.raw)
		return bytes.Contains(text, []byte("session")) || bytes.Contains(text, []byte("not initialized"))
	}
	return false
}

func lost(err error) bool {
	_, ok := errors.AsType[*lostError](err)
	return ok
}

// accepts is the Accept header: ext answers with one document.
func (c *Conn) accepts() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.talk.dialect == manifest.Ext {
		return jsonOnly
	}
	return bothKinds
}

// opened takes over the answer to initialize.
func (c *Conn) opened(f *flight, r *rpc.Reply) {
	result, err := r.Result()
	if err != nil || f.again {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.talk.dialect == manifest.Auto {
		c.talk.dialect = manifest.Ext
		if protocolOf(result) != "" {
			c.talk.dialect = manifest.MCP
		}
	}
	if c.talk.dialect == manifest.MCP {
		c.talk.params = bytes.Clone(f.x.Params)
		c.replaceLocked(newSession(f.header, result))
	}
}

// replaceLocked makes s the session; the caller holds mu.
func (c *Conn) replaceLocked(s *session) {
	if old := c.talk.session; old != nil && old.retire != nil {
		old.retire()
	}
	c.talk.session = s
}

// session is what f goes over, when the server is ready for it; nil for initialize and for ext.
func (c *Conn) session(ctx context.Context, f *flight) (*session, error) {
	if f.method == "initialize" {
		return nil, nil
	}
	c.mu.Lock()
	s, o := c.talk.session, c.talk.opening
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

// reopen is the session after old, which the server has lost. Whoever finds that out first starts to open
// another one; all others wait for it with him.
func (c *Conn) reopen(ctx context.Context, old *session) (*session, error) {
	c.mu.Lock()
	o := c.talk.opening
	switch {
	case c.gone != nil:
		defer c.mu.Unlock()
		return nil, c.gone
	case o == nil && c.talk.session != old:
		defer c.mu.Unlock()
		return c.talk.session, nil
	case o == nil:
		o = &opening{done: make(chan struct{}), old: old}
		c.talk.opening = o
		// Not by the call that found out: it may be cancelled, and the others with it.
		c.startLocked(func(ctx context.Context) { c.open(ctx, o) })
	}
	c.mu.Unlock()
	return o.wait(ctx)
}

// open opens a session again, tells everybody, and listens to it.
func (c *Conn) open(ctx context.Context, o *opening) {
	s, result, err := c.initialize(ctx, o.old)
	if err != nil {
		o.err = c.cannotReopen(err)
	}
	o.session = s
	c.mu.Lock()
	c.talk.opening = nil
	if err == nil {
		c.replaceLocked(s)
	}
	c.mu.Unlock()
	close(o.done)
	if err == nil {
		c.log.Info("the server had lost the session; it was opened again")
		if c.reopened != nil {
			c.reopened(result)
		}
		c.tell.notification(listChanged, nil)
		c.listen(ctx, s)
	} else if final(err) {
		c.end(o.err)
	}
}

// cannotReopen is what the calls are told that wait for a session which could not be opened. They did not run.
func (c *Conn) cannotReopen(err error) *rpc.Error {
	e := rpc.AsError(err)
	d := rpc.Details{Ran: rpc.RanNo, Reason: e.Message, RetryAfterMS: e.Details().RetryAfterMS}
	return rpc.NewError(rpc.CodeUnavailable, d, "the session was lost and cannot be opened again: %s", e.Message)
}

// finalError is an answer to initialize that another try would not change.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

func final(err error) bool {
	if s, ok := errors.AsType[*statusError](err); ok {
		return !passing(s.status)
	}
	_, ok := errors.AsType[finalError](err)
	return ok
}

// initialize opens the session after old, by saying what the bridge had said, and returns what the server answers.
func (c *Conn) initialize(ctx context.Context, old *session) (*session, json.RawMessage, error) {
	short := 0
	if time.Since(old.since) < shortLife {
		if short = old.short + 1; short > maxShort {
			return nil, nil, finalError{errShort}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	w := rpc.NewWaiter()
	c.mu.Lock()
	if c.gone != nil {
		defer c.mu.Unlock()
		return nil, nil, c.gone
	}
	f := c.flights.add(&rpc.Exchange{Method: "initialize", Params: c.talk.params, Sink: w})
	f.again = true
	c.mu.Unlock()
	if err := c.post(ctx, f, nil); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.flights.take(f)
		return nil, nil, err
	}
	result, err := w.Result()
	if err != nil {
		return nil, nil, finalError{err}
	}
	s := newSession(f.header, result)
	s.short = short
	if s.version == "" {
		return nil, nil, finalError{errors.New("the answer to initialize has no protocolVersion any more")}
	}
	return s, result, c.postNote(ctx, s, rpc.AppendRequest(nil, nil, initialized, nil))
}

// leave ends the session, as far as the server lets a client do that.
func (c *Conn) leave(ctx context.Context) {
	c.mu.Lock()
	s := c.talk.session
	c.mu.Unlock()
	if s == nil || s.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	resp, err := c.at.do(ctx, http.MethodDelete, nil, s.header(bothKinds))
	if err != nil {
		c.log.Debug("the session was not ended", "error", c.at.fault(err, rpc.RanMaybe))
		return
	}
	resp.Body.Close()
}
