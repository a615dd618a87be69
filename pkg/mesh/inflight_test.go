package mesh_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

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

// TestPlaceIsFreeWithTheStreamsEnd is the same for answers in chunks, and for those that there is no room for.
func TestPlaceIsFreeWithTheStreamsEnd(t *testing.T) {
	connect := startServer(t)
	big := json.RawMessage(`"` + strings.Repeat("0123456789abcdef", 2<<20/16) + `"`)
	h := rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) { return big, nil })
	serve(t, connect(), weather, h, mesh.ServeOptions{MaxInflight: 1})
	nc := connect()
	inbox := nc.NewInbox()
	frames, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 300 {
		m := &nats.Msg{Subject: "ext.weather.rpc", Reply: inbox, Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/x"}`)}
		want := ""
		if n%2 == 0 {
			m.Header, want = nats.Header{mesh.HeaderStream: {"1"}}, "end"
		}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		kind := "none yet"
		for kind != want {
			m, err := frames.NextMsg(10 * time.Second)
			if err != nil {
				t.Fatalf("call %d: %v", n, err)
			}
			if strings.Contains(string(m.Data), `"overloaded"`) {
				t.Fatalf("call %d: %s", n, m.Data)
			}
			kind = m.Header.Get(mesh.HeaderFrame)
		}
	}
}
