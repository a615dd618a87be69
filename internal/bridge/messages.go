package bridge

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// messages routes the log messages of an MCP server to the caller whose call has caused them, if it wants them. A message
// does not state which call that is: it is certain only while no other call is in flight. A caller must not get the
// messages about the call of another.
type messages struct {
	calls atomic.Int64 // in flight

	mu      sync.Mutex
	wanted  map[*forwardedCall]mcp.LogLevel
	quiet   time.Time        // until then, a call that was given up may still run
	sent    mcp.LogLevel     // the level that the server sends; 0: not set in this session
	asked   mcp.LogLevel     // the level that the server is setting; 0: none
	waiting []*forwardedCall // calls that need another level than sent
	session int              // counts the sessions
}

// setLevel sets the level of log messages that h wants, if the server does not send it yet. It then returns true, and
// sends h when the server has answered: servers may handle requests at the same time, and would drop the first messages
// of a call that is sent together with its level.
func (m *messages) setLevel(h *forwardedCall) bool {
	if !bytes.Contains(h.Params, []byte(mcp.MetaLogLevel)) { // few calls have one
		return false
	}
	if _, ok := h.outer.Sink.(serve.ProgressSink); !ok || !h.f.logs() {
		return false
	}
	h.level = mcp.RequestedLevel(h.Params)
	m.mu.Lock()
	if h.level == 0 || m.sends(h.level) {
		m.mu.Unlock()
		return false
	}
	h.Hold = false // the caller's Flush may come before h is sent
	m.waiting = append(m.waiting, h)
	ask := m.nextLevel()
	m.mu.Unlock()
	ask.start()
	return true
}

// sends reports whether the server sends log messages of a level. The caller holds mu.
func (m *messages) sends(level mcp.LogLevel) bool { return m.sent != 0 && level >= m.sent }

// nextLevel is the request for the lowest level that a waiting call wants, or nil: one is in flight, because the server
// may handle two in any order, or no call waits. The caller holds mu.
func (m *messages) nextLevel() *levelRequest {
	if m.asked != 0 || len(m.waiting) == 0 {
		return nil
	}
	lowest := slices.MinFunc(m.waiting, func(a, b *forwardedCall) int { return cmp.Compare(a.level, b.level) })
	m.asked = lowest.level
	return &levelRequest{f: lowest.f, level: m.asked, session: m.session}
}

// levelTimeout limits how long a call waits for the answer to a request for more log messages. Then it is sent anyway.
const levelTimeout = 2 * time.Second

// levelRequest is a request for more log messages.
type levelRequest struct {
	f       *forwarder
	level   mcp.LogLevel
	session int
}

// start sends the request, unless it is nil.
func (q *levelRequest) start() {
	if q != nil {
		q.f.conn.Start(&jsonrpc.Exchange{Method: "logging/setLevel", Params: []byte(`{"level":"` + q.level.String() + `"}`),
			Deadline: time.Now().Add(levelTimeout), Sink: q})
	}
}

// Deliver implements jsonrpc.Sink: it sends the calls that have waited for the level. If the server
// refuses it or takes long, it counts as set. If the request did not reach the server, the next call sends it again.
func (q *levelRequest) Deliver(_ *jsonrpc.Exchange, r jsonrpc.Reply) {
	m := &q.f.messages
	m.mu.Lock()
	m.asked = 0
	answered := r.Err == nil || r.Err.Code == rpc.CodeTimeout
	if answered && q.session == m.session {
		m.sent = q.level
	}
	ready := m.waiting
	m.waiting = nil
	if answered {
		ready = slices.DeleteFunc(ready, func(h *forwardedCall) bool {
			if !m.sends(h.level) {
				m.waiting = append(m.waiting, h)
			}
			return !m.sends(h.level)
		})
	}
	ask := m.nextLevel()
	m.mu.Unlock()
	for _, h := range ready {
		if !h.Deadline.IsZero() && !time.Now().Before(h.Deadline) {
			h.outer.Sink.Deliver(h.outer, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeTimeout, rpc.RanNo, "the extension did not set the log level in time")})
		} else {
			h.send()
		}
	}
	ask.start()
}

// enter counts a call until leave.
func (m *messages) enter(h *forwardedCall) {
	m.calls.Add(1)
	if h.level == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wanted == nil {
		m.wanted = map[*forwardedCall]mcp.LogLevel{}
	}
	m.wanted[h] = h.level
}

// forgetLevel makes the next call set its level again: a new session has the server's own.
func (m *messages) forgetLevel() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent = 0
	m.session++
}

// quietTime is how long no caller gets log messages after a call was given up, because they may be about that call.
const quietTime = time.Minute

// leave ends enter. mayRun is true if the server may still handle the call.
func (m *messages) leave(h *forwardedCall, mayRun bool) {
	if h.level != 0 || mayRun {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.wanted, h)
		if mayRun {
			m.quiet = time.Now().Add(quietTime)
		}
	}
	m.calls.Add(-1)
}

// deliver passes the params of a log message to the only caller.
func (m *messages) deliver(params []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls.Load() != 1 || time.Now().Before(m.quiet) {
		return
	}
	for h, level := range m.wanted {
		if level.Admits(params) {
			h.outer.Sink.(serve.ProgressSink).Progress(jsonrpc.AppendRequest(nil, nil, "notifications/message", params))
		}
	}
}

// logs reports whether the child has declared that it sends log messages.
func (f *forwarder) logs() bool {
	parsed, err := wire.ParseHandshake(f.handshake.Load().raw)
	return err == nil && parsed.Server != nil && parsed.Server.Offers("logging")
}
