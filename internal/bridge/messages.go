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

// enter counts a call until leave.
func (m *messages) enter(h *forwardedCall) {
	m.calls.Add(1)
	if !bytes.Contains(h.Params, []byte(mcp.MetaLogLevel)) { // few calls have one
		return
	}
	level := mcp.RequestedLevel(h.Params)
	if _, ok := h.outer.Sink.(serve.ProgressSink); !ok || level == 0 || !h.f.logs() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wanted == nil {
		m.wanted = map[*forwardedCall]mcp.LogLevel{}
	}
	m.wanted[h], h.logged = level, true
	if m.sent == 0 || level < m.sent {
		m.sent = level
		h.f.conn.Start(&jsonrpc.Exchange{Method: "logging/setLevel", Params: []byte(`{"level":"` + level.String() + `"}`),
			Deadline: time.Now().Add(levelTimeout), Sink: ignored{}})
	}
}

// forgetLevel makes the next call set its level again: a new session has the server's own.
func (m *messages) forgetLevel() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent = 0
}

// levelTimeout limits a request for more log messages. The call does not wait for the answer.
const levelTimeout = 10 * time.Second

func (m *messages) leave(h *forwardedCall) {
	m.calls.Add(-1)
	if h.logged {
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
