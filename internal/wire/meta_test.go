package wire_test

import (
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
)

func TestWithContext(t *testing.T) {
	const who = `{"agent_id":"a","session_id":"s\""}`
	for _, tt := range []struct{ name, method, dialect, params, want string }{
		{"short form", "tools/x", "ext", `{"n":1.0,"big":1e400}`, `{"n":1.0,"big":1e400,"_meta":` + who + `}`},
		{"short form, forged", "tools/x", "ext", `{"_meta":{"agent_id":"root","x":1},"n":1}`, `{"_meta":` + who + `,"n":1}`},
		{"forged in disguise", "tools/x", "ext", `{"_m\u0065ta":{"agent_id":"root"},"n":1,"_meta":1}`, `{"n":1,"_meta":` + who + `}`},
		{"forged for Go", "tools/x", "ext", `{"_Meta":{"agent_id":"root"}}`, `{"_Meta":{"agent_id":"root"},"_meta":` + who + `}`},
		{"short form, nothing", "tools/x", "ext", ``, `{"_meta":` + who + `}`},
		{"not an object", "tools/x", "ext", `[1]`, `[1]`},
		{"native call", "tools/call", "ext", `{"name":"x","arguments":{"n":1}}`, `{"name":"x","arguments":{"n":1,"_meta":` + who + `}}`},
		{"native call without arguments", "tools/call", "ext", `{"name":"x"}`, `{"name":"x","arguments":{"_meta":` + who + `}}`},
		{"mcp", "tools/call", "mcp", `{"name":"x","arguments":{}}`, `{"name":"x","arguments":{},"_meta":` + who + `}`},
		{"mcp keeps the rest", "tools/call", "mcp", `{"_meta":{"progressToken":9007199254740993,"agent_id":0},"name":"x"}`,
			`{"_meta":{"progressToken":9007199254740993,"agent_id":"a","session_id":"s\""},"name":"x"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := wire.WithContext(tt.method, tt.dialect, []byte(tt.params), "a", `s"`); string(got) != tt.want {
				t.Errorf("= %s\nwant %s", got, tt.want)
			}
		})
	}
}
