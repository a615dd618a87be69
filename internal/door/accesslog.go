package door

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/extmesh/extmesh/internal/mcp"
)

// recorder remembers what the log has about a request: no arguments, results, tokens and cookies.
type recorder struct {
	http.ResponseWriter
	status    int
	principal string
	method    string // of MCP
	tool      string
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController find the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// note remembers the request of a message.
func (r *recorder) note(q *request) { r.method = clip(q.method, 64) }

// noteTool remembers the tool of a call.
func (r *recorder) noteTool(q *request) {
	if q.method != mcp.MethodCallTool {
		return
	}
	if name, e := q.params.ToolName(); e == nil {
		r.tool = clip(name, 128)
	}
}

// ServeHTTP implements http.Handler.
func (h *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w}
	logger := h.door.opt.Logger
	if !logger.Enabled(context.Background(), slog.LevelDebug) {
		h.serve(rec, r)
		return
	}
	began := time.Now()
	h.serve(rec, r)
	logger.Debug("request", "method", r.Method, "path", clip(r.URL.Path, 128), "status", rec.status, "took", time.Since(began).String(),
		"client", rec.principal, "message", rec.method, "tool", rec.tool)
}

// refuse refuses a request. Only mistakes that an attacker makes, or a client with an old token, are counted and logged.
func (h *httpServer) refuse(w http.ResponseWriter, r *http.Request, f *fault, principal string) {
	h.door.metrics.refuse(f.reason)
	h.log[f.reason].Do(func() {
		h.door.opt.Logger.Warn("request refused", "status", f.status, "reason", f.text, "client", principal, "remote", r.RemoteAddr)
	})
	f.write(w)
}
