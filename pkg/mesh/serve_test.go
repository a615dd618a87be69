package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// startServer runs NATS in the process, without ports; connect makes connections to it.
func startServer(t testing.TB) (connect func(...nats.Option) *nats.Conn) {
	t.Helper()
	return natstest.Start(t, nil).Connect
}

// serveWeather starts an instance with the handler h, and returns it when it is ready. stop ends its Serve.
func serveWeather(t testing.TB, nc *nats.Conn, a wire.Announce, h rpc.Handler, opt serve.Options) (slot *serve.Instance, stop func()) {
	t.Helper()
	node := serve.NewPublisher(nc, serve.PublisherOptions{})
	slot = node.Join(a)
	nodeCtx, stopNode := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	var wg, life sync.WaitGroup
	wg.Go(func() { node.Run(nodeCtx) }) // these three end with their contexts, below
	wg.Go(func() { slot.Run(nodeCtx) })
	life.Go(func() {
		if err := slot.Serve(ctx, h, opt); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); life.Wait() })
	t.Cleanup(func() { stop(); stopNode(); wg.Wait() })
	natstest.Eventually(t, "the slot is ready", func() bool { s, _ := slot.State(); return s == heartbeat.Ready })
	return slot, stop
}

func echo(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
	switch r.Method {
	case "tools/echo":
		return r.Params, nil
	case "tools/fail":
		return nil, &rpc.Error{Code: -7, Message: "own error", Data: json.RawMessage(`{"n":1.0}`)}
	case "tools/panic":
		panic("secret")
	}
	return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no %s", r.Method)
}

var weather = wire.Announce{ID: "weather", Version: "1.2.3", Transport: "nats", Dialect: "ext"}

func TestCall(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	slot, _ := serveWeather(t, connect(), weather, rpc.HandlerFunc(echo), serve.Options{})
	client := mesh.NewClient(connect(), mesh.ClientOptions{})

	const odd = `{"z":9007199254740993,"a":1e400,"one":1.0,"h":"<&>\u00e9"}`
	got, err := client.Call(t.Context(), "weather/echo", json.RawMessage(odd))
	if err != nil || string(got) != odd {
		t.Errorf("echo = %s, %v", got, err)
	}
	_, err = client.Call(t.Context(), "weather/fail", nil)
	if e := rpc.AsError(err); e.Code != -7 || e.Message != "own error" || string(e.Data) != `{"n":1.0}` {
		t.Errorf("own error = %+v", e)
	}
	for tool, code := range map[string]rpc.Code{"panic": rpc.CodeInternal, "nope": rpc.CodeMethodNotFound} {
		if _, err := client.Call(t.Context(), "weather/"+tool, nil); !errors.Is(err, code) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %v", tool, err, code)
		}
	}
	if _, err := client.CallExt(t.Context(), "nobody", "ping", nil); !errors.Is(err, rpc.CodeUnavailable) || rpc.AsError(err).Details().Ran != rpc.RanNo {
		t.Errorf("nobody: %v", err)
	}
	m, err := connect().Request(wire.Prefix("ext").InstanceRPC("weather", slot.Instance()), []byte(`{"jsonrpc":"2.0","id":"x","method":"tools/echo","params":[1]}`), time.Minute)
	if err != nil || string(m.Data) != `{"jsonrpc":"2.0","id":"x","result":[1]}` {
		t.Errorf("on the instance's subject: %s, %v", m.Data, err)
	}
}

// TestClocksDoNotMatter: a caller with a clock an hour behind or ahead has all of its time. No request of a Client has a
// time of day in it, and one in a header of another program is ignored.
func TestClocksDoNotMatter(t *testing.T) {
	connect := startServer(t)
	nc := connect()
	requests, err := nc.SubscribeSync("ext.weather.rpc")
	if err != nil {
		t.Fatal(err)
	}
	serveWeather(t, connect(), weather, rpc.HandlerFunc(echo), serve.Options{})
	nc.Flush()
	if _, err := mesh.NewClient(connect(), mesh.ClientOptions{Agent: "a", Session: "s"}).Call(t.Context(), "weather/echo", nil); err != nil {
		t.Fatal(err)
	}
	m, err := requests.NextMsg(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range m.Header {
		if n, err := strconv.ParseInt(values[0], 10, 64); err == nil && n > time.Hour.Milliseconds() {
			t.Errorf("%s: %d is no duration of a call", name, n)
		}
	}
	for _, off := range []time.Duration{-time.Hour, -3500 * time.Millisecond, time.Hour} {
		m, err := nc.RequestMsg(&nats.Msg{Subject: "ext.weather.rpc", Data: []byte(`{"id":1,"method":"tools/echo"}`), Header: nats.Header{
			"Ext-Timeout": {"20000"}, "Ext-Deadline": {strconv.FormatInt(time.Now().Add(off+time.Second).UnixMilli(), 10)}}}, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if env, err := jsonrpc.Scan(m.Data); err != nil || env.Result == nil {
			t.Errorf("a clock that is off by %s: %s", off, m.Data)
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	connect := startServer(t)
	release := make(chan struct{})
	h := rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		if r.Method == "tools/wait" {
			select {
			case <-release:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return json.RawMessage(`true`), nil
		}
		return echo(ctx, r)
	})
	serveWeather(t, connect(), weather, h, serve.Options{MaxInflight: 2})
	nc := connect()
	for _, tt := range []struct {
		name, body string
		header     nats.Header
		code       string
		id         string
	}{
		{name: "not JSON", body: `hello`, code: "-32700", id: `null`},
		{name: "NaN", body: `{"jsonrpc":"2.0","id":1,"method":"x","params":NaN}`, code: "-32700", id: `null`},
		{name: "not UTF-8", body: "{\"id\":1,\"method\":\"x\",\"params\":\"\xff\"}", code: "-32700", id: `1`},
		{name: "no id", body: `{"jsonrpc":"2.0","method":"ping"}`, code: "-32600", id: `null`},
		{name: "id is an object", body: `{"jsonrpc":"2.0","id":{},"method":"ping"}`, code: "-32600", id: `null`},
		{name: "no method", body: `{"jsonrpc":"2.0","id":1}`, code: "-32600", id: `1`},
		{name: "shutdown", body: `{"jsonrpc":"2.0","id":1,"method":"shutdown"}`, code: "-32601", id: `1`},
		{name: "odd time-out", body: `{"id":1,"method":"x"}`, header: nats.Header{"Ext-Timeout": {"soon"}}, code: "-32600", id: `1`},
		{name: "time-out", body: `{"id":1,"method":"tools/wait"}`, header: nats.Header{"Ext-Timeout": {"20"}}, code: "-32001", id: `1`},
		{name: "panic", body: `{"id":1,"method":"tools/panic"}`, code: "-32603", id: `1`},
		{name: "no such method", body: `{"id":1,"method":"tools/nope"}`, code: "-32601", id: `1`},
		{name: "an own error", body: `{"id":1,"method":"tools/fail"}`, code: "", id: `1`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := nc.RequestMsg(&nats.Msg{Subject: "ext.weather.rpc", Header: tt.header, Data: []byte(tt.body)}, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if code := m.Header.Get("Nats-Service-Error-Code"); code != tt.code {
				t.Errorf("code %q, want %q: %s", code, tt.code, m.Data)
			}
			env, err := jsonrpc.Scan(m.Data)
			if err != nil || string(env.ID) != tt.id || env.Error == nil {
				t.Errorf("answer %s, want an error for id %s", m.Data, tt.id)
			}
		})
	}
	t.Run("overloaded", func(t *testing.T) {
		inbox, err := nc.SubscribeSync(nc.NewInbox())
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			nc.PublishRequest("ext.weather.rpc", inbox.Subject, []byte(`{"id":1,"method":"tools/wait"}`))
		}
		m, err := inbox.NextMsg(time.Minute)
		if err != nil || m.Header.Get("Nats-Service-Error-Code") != "-32005" || !strings.Contains(string(m.Data), `"limit":2`) {
			t.Errorf("third call: %v, %v", m, err)
		}
		close(release)
		for range 2 {
			if m, err := inbox.NextMsg(time.Minute); err != nil || !strings.Contains(string(m.Data), `"result":true`) {
				t.Errorf("waiting call: %v, %v", m, err)
			}
		}
	})
}

func TestCancel(t *testing.T) {
	connect := startServer(t)
	started, ended := make(chan struct{}, 2), make(chan error, 2)
	h := rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		started <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	serveWeather(t, connect(), weather, h, serve.Options{})
	nc := connect()
	request := func(id string) <-chan *nats.Msg {
		ch := make(chan *nats.Msg, 1)
		inbox := nc.NewInbox()
		nc.ChanSubscribe(inbox, ch)
		nc.PublishMsg(&nats.Msg{Subject: "ext.weather.rpc", Reply: inbox, Data: []byte(`{"id":1,"method":"tools/x"}`), Header: nats.Header{"Ext-Call-Id": {id}}})
		return ch
	}
	reply := request("a")
	<-started
	nc.Publish("ext.weather.cancel", []byte(`{"call_id":"a"}`))
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the handler saw %v", err)
	}
	if m := <-reply; !strings.Contains(string(m.Data), `-32007`) {
		t.Errorf("answer %s", m.Data)
	}
	nc.Publish("ext.weather.cancel", []byte(`{"call_id":"early"}`))
	nc.Publish("ext.weather.cancel", []byte(`{"call_id":`)) // nonsense has no effect
	nc.Flush()
	if m := <-request("early"); !strings.Contains(string(m.Data), `-32007`) {
		t.Errorf("answer to the call that came after its cancel: %s", m.Data)
	}
}

// TestStopUnderLoad stops a service while calls pour in: every call is either answered, or refused as not run.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	for range 20 {
		h := rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
			select {
			case <-time.After(5 * time.Millisecond):
				return json.RawMessage(`true`), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		_, stop := serveWeather(t, connect(), weather, h, serve.Options{MaxInflight: 1000})
		nc := connect()
		var wg sync.WaitGroup
		var answered atomic.Int64
		for range 16 {
			wg.Go(func() {
				for {
					m, err := nc.Request("ext.weather.rpc", []byte(`{"id":1,"method":"tools/x"}`), time.Minute)
					switch {
					case errors.Is(err, nats.ErrNoResponders):
						return
					case err != nil:
						t.Errorf("lost: %v", err)
						return
					case strings.Contains(string(m.Data), `"ran":"no"`):
						return
					case !strings.Contains(string(m.Data), `"result":true`):
						t.Errorf("lost: %s", m.Data)
						return
					}
					answered.Add(1)
				}
			})
		}
		natstest.Eventually(t, "calls are answered", func() bool { return answered.Load() > 50 })
		stop()
		wg.Wait()
	}
}

func TestAnnouncesAndBeats(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	nc := connect()
	got := make(chan *nats.Msg, 100)
	if _, err := nc.ChanSubscribe("ext.registry.>", got); err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	next := func(subject, text string) {
		t.Helper()
		deadline := time.After(time.Minute)
		for {
			select {
			case m := <-got:
				if m.Subject == subject && strings.Contains(string(m.Data), text) {
					return
				}
			case <-deadline:
				t.Fatalf("no %s with %s", subject, text)
			}
		}
	}
	slot, stop := serveWeather(t, connect(), weather, rpc.HandlerFunc(echo), serve.Options{})
	next("ext.registry.announce.weather", fmt.Sprintf(`"instance":%q`, slot.Instance()))
	next("ext.registry.heartbeat.weather", `"state":"ready"`)
	slot.Update(func(a *wire.Announce) { a.HandshakeHash = "abc" })
	next("ext.registry.announce.weather", `"handshake_hash":"abc"`)
	nc.Publish("ext.registry.request", nil)
	next("ext.registry.announce.weather", `"handshake_hash":"abc"`)
	slot.Apply(instance.Event{Kind: instance.Drain})
	next("ext.registry.heartbeat.weather", `"reason":"drain requested"`)
	stop()
}
