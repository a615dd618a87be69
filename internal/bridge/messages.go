package bridge

import (
	"bytes"
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

	mu     sync.Mutex
	wanted map[*forwardedCall]mcp.LogLevel
	quiet  time.Time     // until then, a call that was given up may still run
	sent   mcp.LogLevel  // the level that the server sends; 0: not set in this session
	asked  *levelRequest // in flight; nil: none
}

// setLevel sets the level of log messages that h wants, if the server does not send it yet. It does not wait for the answer:
// a server that handles requests at the same time may drop the first messages of h. While an earlier level is being set,
// setLevel sets nothing, because such a server may handle two of these requests in any order; the next call does.
func (m *messages) setLevel(h *forwardedCall) {
	if !bytes.Contains(h.Params, []byte(mcp.MetaLogLevel)) { // few calls have one
		return
	}
	if _, ok := h.outer.Sink.(serve.ProgressSink); !ok || !h.f.logs() {
		return
	}
	h.level = mcp.RequestedLevel(h.Params)
	if h.level == 0 {
		return
	}
	m.mu.Lock()
	if m.asked != nil || m.sent != 0 && h.level >= m.sent {
		m.mu.Unlock()
		return
	}
	q := &levelRequest{messages: m, level: h.level}
	m.asked = q
	m.mu.Unlock()
	h.f.conn.Start(&jsonrpc.Exchange{Method: "logging/setLevel", Params: []byte(`{"level":"` + q.level.String() + `"}`),
		Deadline: time.Now().Add(levelTimeout), Sink: q})
}

// levelTimeout is the time that a server has to answer a request for more log messages.
const levelTimeout = 2 * time.Second

// levelRequest is a request for more log messages.
type levelRequest struct {
	messages *messages
	level    mcp.LogLevel
}

// Deliver implements jsonrpc.Sink. If the server refuses the level or takes long, it counts as set. If the request did not
// reach the server, the next call sends it again.
func (q *levelRequest) Deliver(_ *jsonrpc.Exchange, r jsonrpc.Reply) {
	m := q.messages
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked != q { // of an earlier session
		return
	}
	m.asked = nil
	if r.Err == nil || r.Err.Code == rpc.CodeTimeout {
		m.sent = q.level
	}
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
	m.sent, m.asked = 0, nil
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
