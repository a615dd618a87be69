package bridge

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestTraceToChild: an MCP child receives the trace context; a native one receives no unknown members.
func TestTraceToChild(t *testing.T) {
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, tt := range []struct {
		dialect              manifest.Dialect
		method, params, want string
	}{
		{manifest.MCP, "tools/say", `{"a":1.0}`, `tools/call {"name":"say","arguments":{"a":1.0},"_meta":{"traceparent":"` + trace + `"}}`},
		{manifest.MCP, "prompts/get", `{"name":"p"}`, `prompts/get {"name":"p","_meta":{"traceparent":"` + trace + `"}}`},
		{manifest.MCP, "ping", ``, `ping `},
		{manifest.Ext, "tools/say", `{"a":1.0}`, `tools/say {"a":1.0}`},
	} {
		l := &scriptedLink{answer: result("1")}
		f := replicas(tt.dialect, l)[0]
		_, err := f.Handle(t.Context(), &rpc.Request{Method: tt.method, Params: json.RawMessage(tt.params), Traceparent: trace})
		if got := strings.Join(l.sent, "; "); got != tt.want || err != nil {
			t.Errorf("%s: %s was sent as %q, %v; want %q", tt.dialect, tt.method, got, err, tt.want)
		}
	}
}
