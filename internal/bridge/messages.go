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
)

// messages routes the log messages of an MCP server to the caller whose call has caused them, if it wants them. A message
// does not state which call that is: it is certain only while no other call is in flight. A caller must not get the
// messages about the call of another.
type messages struct {
	calls atomic.Int64 // in flight

	mu     sync.Mutex
	wanted map[*forwardedCall]mcp.LogLevel
	sent   mcp.LogLevel // the level that the server sends; 0: not set in this run
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
	set := h.level != 0 && (m.sent == 0 || h.level < m.sent)
	if set {
		m.sent = h.level
	}
	m.mu.Unlock()
	if !set {
		return false
	}
	h.Hold = false // the caller's Flush may come before h is sent
	deadline := time.Now().Add(levelTimeout)
	if !h.Deadline.IsZero() && h.Deadline.Before(deadline) {
		deadline = h.Deadline
	}
	h.f.conn.Start(&jsonrpc.Exchange{Method: "logging/setLevel", Params: []byte(`{"level":"` + h.level.String() + `"}`),
		Deadline: deadline, Sink: levelSet{h}})
	return true
}

// levelTimeout limits how long a call waits for the answer to a request for more log messages. Then it is sent anyway.
const levelTimeout = 2 * time.Second

// levelSet is the sink of a request for more log messages, on which a call waits.
type levelSet struct{ h *forwardedCall }

// Deliver implements jsonrpc.Sink. If the server refuses the level, the call gets fewer messages.
func (s levelSet) Deliver(*jsonrpc.Exchange, jsonrpc.Reply) { s.h.send() }

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
}

func (m *messages) leave(h *forwardedCall) {
	m.calls.Add(-1)
	if h.level != 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.wanted, h)
	}
}

// deliver passes the params of a log message to the only caller.
func (m *messages) deliver(params []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls.Load() != 1 {
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
