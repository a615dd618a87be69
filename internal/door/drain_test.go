package door

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/mcp"
)

// TestDraining sends requests to a server that is stopping, over connections that are still open: calls are answered, and
// what would begin something that lasts is refused or ends at once.
func TestDraining(t *testing.T) {
	_, d := helloBed(t)
	h := d.newHTTPServer(HTTPOptions{})
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	t.Cleanup(h.sessions.endAll)
	w := &web{t, srv.URL + "/mcp", h}
	session := w.begin("2025-11-25")
	close(h.drain)
	h.sessions.endStreams()
	initialize := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	if a := w.do("POST", "", initialize); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "the server is stopping: connect again") {
		t.Errorf("a new session: %+v", a)
	}
	if a := w.do("POST", "", callMessage("1", "ext_hello_greet", ""), session); a.status != 200 || !strings.Contains(a.body, `"result"`) {
		t.Errorf("a call of a session: %+v", a)
	}
	if a := w.do("POST", "", callMessage("1", "ext_hello_greet", ","+modernMeta), modernHeader("tools/call", "ext_hello_greet")); a.status != 200 || !strings.Contains(a.body, `"result"`) {
		t.Errorf("a call without a session: %+v", a)
	}
	listen := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + modernMeta + `}}`
	if a := w.do("POST", "", listen, modernHeader(mcp.MethodListen, "")); a.status != 200 || !strings.Contains(a.body, `"resultType":"complete"`) {
		t.Errorf("a subscription does not end: %+v", a)
	}
	if a := w.do("GET", "", "", session); a.status != 200 || strings.Contains(a.body, "jsonrpc") {
		t.Errorf("a stream of a session does not end: %+v", a)
	}
}
