package mesh_test

import (
	"testing"

	"github.com/extmesh/extmesh/pkg/mesh"
)

func TestWithContext(t *testing.T) {
	const who = `{"agent_id":"a","session_id":"s\""}`
	for _, tt := range []struct{ name, method, dialect, params, want string }{
		{"short form", "tools/x", "ext", `{"n":1.0,"big":1e400}`, `{"_meta":` + who + `,"n":1.0,"big":1e400}`},
		{"short form, forged", "tools/x", "ext", `{"_meta":{"agent_id":"root","x":1},"n":1}`, `{"_meta":` + who + `,"n":1}`},
		{"short form, nothing", "tools/x", "ext", ``, `{"_meta":` + who + `}`},
		{"not an object", "tools/x", "ext", `[1]`, `[1]`},
		{"native call", "tools/call", "ext", `{"name":"x","arguments":{"n":1}}`, `{"name":"x","arguments":{"_meta":` + who + `,"n":1}}`},
		{"native call without arguments", "tools/call", "ext", `{"name":"x"}`, `{"arguments":{"_meta":` + who + `},"name":"x"}`},
		{"mcp", "tools/call", "mcp", `{"name":"x","arguments":{}}`, `{"_meta":` + who + `,"name":"x","arguments":{}}`},
		{"mcp keeps the rest", "tools/call", "mcp", `{"_meta":{"progressToken":9007199254740993,"agent_id":0},"name":"x"}`,
			`{"_meta":{"session_id":"s\"","progressToken":9007199254740993,"agent_id":"a"},"name":"x"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := mesh.WithContext(tt.method, tt.dialect, []byte(tt.params), "a", `s"`); string(got) != tt.want {
				t.Errorf("= %s\nwant %s", got, tt.want)
			}
		})
	}
}
