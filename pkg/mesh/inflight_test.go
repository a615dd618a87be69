package mesh_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestPlaceIsFreeWithTheAnswer calls again with each answer, where one call may be in flight: its own answer must not
// stand in the caller's way.
func TestPlaceIsFreeWithTheAnswer(t *testing.T) {
	connect := startServer(t)
	h := rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		switch r.Method {
		case "initialize":
			return json.RawMessage(`{"server_version":"1","tools":[],"hooks":[]}`), nil
		case "tools/fail":
			return nil, rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "it failed")
		}
		return json.RawMessage(`{}`), nil
	})
	serve(t, connect(), weather, h, mesh.ServeOptions{MaxInflight: 1})
	nc := connect()
	for n := range 3000 {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/` + []string{"x", "fail"}[n%2] + `"}`
		m, err := nc.Request("ext.weather.rpc", []byte(body), 10*time.Second)
		if err != nil || strings.Contains(string(m.Data), "overloaded") {
			t.Fatalf("call %d: %s, %v", n, m.Data, err)
		}
	}
}
