package door

import (
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// knownMethods are the methods that have metrics of their own, so that clients cannot make series.
var knownMethods = []string{
	mcp.MethodInitialize, mcp.MethodDiscover, mcp.MethodPing, mcp.MethodListTools, mcp.MethodCallTool, mcp.MethodListen,
	"resources/list", "resources/templates/list", "resources/read", "resources/subscribe", "resources/unsubscribe",
	"prompts/list", "prompts/get", "completion/complete", "logging/setLevel", "skills/list", "skills/get",
}

const otherMethod = "other"

// Outcomes of requests. A failed call has a result with isError that the Door has written.
const (
	outcomeOK = iota
	outcomeFailed
	outcomeError
	outcomeCancelled
	outcomes
)

var outcomeNames = [outcomes]string{"ok", "failed", "error", "cancelled"}

// methodMetrics are the metrics of one method.
type methodMetrics struct {
	legacy, modern [outcomes]atomic.Uint64
	took           calls.Histogram
}

// metrics are the metrics of a Door.
type metrics struct {
	methods map[string]*methodMetrics // not changed after newMetrics
	web     atomic.Pointer[httpServer]

	mu      sync.Mutex
	refused map[string]uint64 // HTTP requests, by reason
}

// The reasons for which the HTTP server refuses requests.
var refusals = []string{"host", "origin", "token", "profile", "rate", "sessions", "streams"}

func newMetrics() *metrics {
	m := &metrics{methods: map[string]*methodMetrics{otherMethod: {}}, refused: map[string]uint64{}}
	for _, method := range knownMethods {
		m.methods[method] = &methodMetrics{}
	}
	for _, reason := range refusals {
		m.refused[reason] = 0
	}
	return m
}

// count counts a request that has been answered.
func (m *metrics) count(q *request, began time.Time, err *rpc.Error) {
	of := m.methods[q.method]
	if of == nil {
		of = m.methods[otherMethod]
	}
	outcome := outcomeOK
	switch {
	case err == errNoAnswer:
		outcome = outcomeCancelled
	case err != nil:
		outcome = outcomeError
	case q.failed:
		outcome = outcomeFailed
	}
	if q.era == mcp.EraModern {
		of.modern[outcome].Add(1)
	} else {
		of.legacy[outcome].Add(1)
	}
	if q.method == mcp.MethodListen {
		return // a subscription lasts as long as the client wants
	}
	of.took.Add(time.Since(began))
}

func (m *metrics) refuse(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[reason]++
}

// WriteMetrics writes the Door's metrics in the Prometheus text format, for the /metrics page of internal/daemon. It may be
// called at any time.
func (d *Door) WriteMetrics(w io.Writer) {
	m := d.metrics
	names := slices.Sorted(maps.Keys(m.methods))
	daemon.Family(w, "extmesh_mcp_requests_total", "counter", "Requests of MCP clients by method, era and outcome. failed: a tool call that the mesh could not complete.")
	for _, name := range names {
		m.methods[name].writeRequests(w, name)
	}
	daemon.Family(w, "extmesh_mcp_request_duration_seconds", "histogram", "Time from the arrival of a request to its answer.")
	for _, name := range names {
		if name != mcp.MethodListen {
			daemon.Histogram(w, "extmesh_mcp_request_duration_seconds", m.methods[name].took.Read(), "method", name)
		}
	}
	daemon.Family(w, "extmesh_mcp_inflight_calls", "gauge", "Calls in progress.")
	daemon.Sample(w, "extmesh_mcp_inflight_calls", float64(d.running.Load()))
	daemon.Family(w, "extmesh_mcp_view_tools", "gauge", "Tools that a profile has.")
	for _, name := range slices.Sorted(maps.Keys(d.profiles)) {
		daemon.Sample(w, "extmesh_mcp_view_tools", float64(len(d.profiles[name].now.Load().tools)), "profile", name)
	}
	if web := m.web.Load(); web != nil {
		m.writeHTTP(w, web)
	}
}

// writeHTTP writes the metrics of the HTTP server.
func (m *metrics) writeHTTP(w io.Writer, web *httpServer) {
	daemon.Family(w, "extmesh_mcp_sessions", "gauge", "Sessions of MCP clients with initialize.")
	daemon.Sample(w, "extmesh_mcp_sessions", float64(web.sessions.number()))
	daemon.Family(w, "extmesh_mcp_streams", "gauge", "Open streams of notifications.")
	daemon.Sample(w, "extmesh_mcp_streams", float64(web.users.streams()))
	daemon.Family(w, "extmesh_mcp_refused_total", "counter", "HTTP requests that were refused, by reason.")
	m.mu.Lock()
	refused := maps.Clone(m.refused)
	m.mu.Unlock()
	for _, reason := range slices.Sorted(maps.Keys(refused)) {
		daemon.Sample(w, "extmesh_mcp_refused_total", float64(refused[reason]), "reason", reason)
	}
}

func (m *methodMetrics) writeRequests(w io.Writer, method string) {
	for i, name := range outcomeNames {
		daemon.Sample(w, "extmesh_mcp_requests_total", float64(m.legacy[i].Load()), "method", method, "era", "legacy", "outcome", name)
		daemon.Sample(w, "extmesh_mcp_requests_total", float64(m.modern[i].Load()), "method", method, "era", "modern", "outcome", name)
	}
}
