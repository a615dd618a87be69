package mesh_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestAnswersToTheMeshItself checks that a caller, who chooses the id in its answer, cannot have the answer published as a
// heartbeat, a shutdown notice or a change of the catalog by a program that may publish there.
func TestAnswersToTheMeshItself(t *testing.T) {
	connect := startServer(t)
	serveWeather(t, connect(), weather, rpc.HandlerFunc(echo), serve.Options{})
	nc := connect()
	heard, err := nc.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	for _, reply := range []string{"ext.registry.heartbeat.victim", "ext.registry.shutdown.victim", "$KV.ext_catalog.spec.victim", "ext2.inbox"} {
		nc.PublishRequest("ext.weather.rpc", reply, []byte(`{"jsonrpc":"2.0","id":"victim","method":"tools/echo","params":{}}`))
	}
	for {
		m, err := heard.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if m.Subject == "ext2.inbox" { // the last one, and an inbox like any other
			return
		}
		if strings.HasSuffix(m.Subject, "victim") {
			t.Errorf("%s: %s", m.Subject, m.Data)
		}
	}
}

func TestWhatIsNoRequest(t *testing.T) {
	connect := startServer(t)
	serveWeather(t, connect(), weather, rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		return json.Marshal(r.Method)
	}), serve.Options{})
	nc := connect()
	for _, tt := range []struct{ body, want string }{
		{`[]`, `"id":null,"error":{"code":-32600`},
		{`[{"jsonrpc":"2.0","id":1,"method":"x"}]`, `"id":null,"error":{"code":-32600`},
		{`7`, `"id":null,"error":{"code":-32600`},
		{`{"id":1,"method":"x"`, `"id":null,"error":{"code":-32700`},
		{`{"jsonrpc":"2.0","id":1,"method":7}`, `"id":1,"error":{"code":-32600`},
		{"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"x\"}", `"id":null,"error":{"code":-32700`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/a\\b"}`, `"result":"tools/a\\b"`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/a\b"}`, `"result":"tools/a\b"`}, // spelt like the name before
	} {
		m, err := nc.Request("ext.weather.rpc", []byte(tt.body), time.Minute)
		if err != nil || !strings.Contains(string(m.Data), tt.want) {
			t.Errorf("%q is answered %s, %v, want %s", tt.body, m.Data, err, tt.want)
		}
	}
}

// TestCancelOfALargeAnswer cancels a call while its answer is sent and not acknowledged: its place is free at once.
func TestCancelOfALargeAnswer(t *testing.T) {
	connect := startServer(t)
	big := json.RawMessage(`"` + strings.Repeat("x", 9<<20) + `"`)
	serveWeather(t, connect(), weather, rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		if r.Method == "tools/big" {
			return big, nil
		}
		return json.RawMessage("{}"), nil
	}), serve.Options{MaxInflight: 1})
	nc := connect()
	frames := make(chan *nats.Msg, 100)
	m := nats.NewMsg("ext.weather.rpc")
	m.Reply, m.Data = nc.NewInbox(), []byte(`{"id":1,"method":"tools/big"}`)
	if _, err := nc.ChanSubscribe(m.Reply, frames); err != nil {
		t.Fatal(err)
	}
	m.Header.Set("Ext-Stream", "1")
	m.Header.Set("Ext-Call-Id", "a")
	nc.PublishMsg(m)
	for range wire.AckEvery {
		<-frames
	}
	nc.Publish("ext.weather.cancel", []byte(`{"call_id":"a"}`))
	began := time.Now()
	natstest.Eventually(t, "the place is free", func() bool {
		r, err := nc.Request("ext.weather.rpc", []byte(`{"id":1,"method":"tools/small"}`), time.Minute)
		return err == nil && !strings.Contains(string(r.Data), "-32005")
	})
	if took := time.Since(began); took > wire.AckWait*9/10 {
		t.Errorf("after %s: it waited for an acknowledgement", took)
	}
}
