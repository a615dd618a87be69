package mesh

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestDo checks what a call for another caller carries: the members of _meta to an extension that takes tools/call, and the
// caller's identity in the headers and, if the extension requires that, in the params.
func TestDo(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	for _, id := range []string{"mcp", "native", "passing"} {
		spec := testSpec(id, "1.0.0", "echo")
		spec.Dialect = map[string]string{"native": "ext"}[id]
		if spec.Dialect == "" {
			spec.Dialect = "mcp"
		}
		spec.Context.Passthrough = id == "passing"
		b.put("spec."+id, spec)
		b.put("state."+id, testState(heartbeat.Ready))
	}
	nc := b.connect()
	if _, err := nc.Subscribe("ext.*.rpc", func(m *nats.Msg) {
		var q struct{ Params json.RawMessage }
		if err := json.Unmarshal(m.Data, &q); err != nil {
			t.Error(err)
		}
		answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":{"params":%s,"agent":%q,"session":%q}}`,
			q.Params, m.Header.Get(wire.HeaderAgent), m.Header.Get(wire.HeaderSession))
		if err := m.Respond([]byte(answer)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c := b.follow(CatalogOptions{})
	await(t, c, "the extensions", func(c *Catalog) bool { return len(c.All()) == 3 })
	client := NewClient(b.connect(), ClientOptions{Catalog: c, Agent: "door"})
	progress := func(json.RawMessage) {}
	for _, tt := range []struct {
		call ToolCall
		want string
	}{
		{ToolCall{Tool: "mcp/echo"}, `{"params":{"name":"echo","arguments":{}},"agent":"door","session":""}`},
		{ToolCall{Tool: "mcp/echo", Arguments: json.RawMessage(`{"n":1.0}`), Meta: json.RawMessage(`{"v/x":1e400}`), Agent: "ada", Session: "s"},
			`{"params":{"name":"echo","arguments":{"n":1.0},"_meta":{"v/x":1e400}},"agent":"ada","session":"s"}`},
		{ToolCall{Tool: "mcp/echo", Progress: progress}, `{"params":{"name":"echo","arguments":{},"_meta":{"progressToken":1}},"agent":"door","session":""}`},
		{ToolCall{Tool: "mcp/echo", Progress: progress, Meta: json.RawMessage(`{"v/x":1}`)},
			`{"params":{"name":"echo","arguments":{},"_meta":{"v/x":1,"progressToken":1}},"agent":"door","session":""}`},
		{ToolCall{Tool: "native/echo", Meta: json.RawMessage(`{"v/x":1}`), Agent: "ada"}, `{"params":{},"agent":"ada","session":""}`},
		{ToolCall{Tool: "passing/echo", Agent: "ada", Session: "s"},
			`{"params":{"name":"echo","arguments":{},"_meta":{"agent_id":"ada","session_id":"s"}},"agent":"ada","session":"s"}`},
	} {
		if got, err := client.Do(t.Context(), tt.call); err != nil || string(got) != tt.want {
			t.Errorf("%+v:\n%s, %v\nwant %s", tt.call, got, err, tt.want)
		}
	}
}
