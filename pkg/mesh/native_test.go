package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
	"github.com/extmesh/extmesh/pkg/rpc/stdio"
)

func greeter() *mesh.Toolbox {
	box := &mesh.Toolbox{Version: "1.0.0"}
	mesh.AddTool(box, "greet", "Greets somebody.", func(_ context.Context, in struct {
		Name  string `json:"name" jsonschema:"whom to greet"`
		Times int    `json:"times,omitempty"`
	}) (map[string]string, error) {
		if in.Name == "nobody" {
			return nil, errors.New("there is nobody to greet")
		}
		return map[string]string{"greeting": "Hello, <" + in.Name + ">!"}, nil
	})
	box.AddRaw("echo", "Echoes its arguments.", nil, func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		return r.Params, nil
	})
	box.AddRaw("list", "Echoes its arguments, too.", nil, func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		return r.Params, nil
	})
	box.Annotate("echo", "annotations", map[string]bool{"readOnlyHint": true})
	box.AddHook("before_message", func(_ context.Context, event json.RawMessage) (mesh.HookResult, error) {
		if strings.Contains(string(event), "spam") {
			return mesh.HookResult{Abort: true, Reason: "spam"}, nil
		}
		return mesh.HookResult{}, nil
	})
	return box
}

func TestToolbox(t *testing.T) {
	box := greeter()
	for _, tt := range []struct {
		method, params, want string
		code                 rpc.Code
	}{
		{method: "ping", want: `{}`},
		{method: "tools/greet", params: `{"name":"Ada","_meta":{"agent_id":"a"}}`, want: `{"greeting":"Hello, <Ada>!"}`},
		{method: "tools/call", params: `{"name":"greet","arguments":{"name":"Bob"}}`, want: `{"greeting":"Hello, <Bob>!"}`},
		{method: "tools/call", params: `{"name":"echo"}`, want: `{}`},
		{method: "tools/call", params: `{"name":"list","arguments":{"a":1}}`, want: `{"a":1}`},
		{method: "tools/call", params: `{"name":"call","arguments":{"name":"echo"}}`, code: rpc.CodeMethodNotFound},
		{method: "tools/echo", params: `{"n":1.0}`, want: `{"n":1.0}`},
		{method: "hooks/before_message", params: `{"text":"spam"}`, want: `{"abort":true,"reason":"spam"}`},
		{method: "hooks/before_message", params: `{"text":"hi"}`, want: `{}`},
		{method: "tools/greet", params: `{}`, code: rpc.CodeInvalidParams},
		{method: "tools/greet", params: `{"name":7}`, code: rpc.CodeInvalidParams},
		{method: "tools/greet", params: `{"name":"Ada","nmae":"x"}`, code: rpc.CodeInvalidParams},
		{method: "tools/greet", params: `[]`, code: rpc.CodeInvalidParams},
		{method: "tools/greet", params: `{"name":null}`, code: rpc.CodeInvalidParams},
		{method: "tools/greet", params: `{"name":"Ada","NAME":"Eve"}`, code: rpc.CodeInvalidParams},
		{method: "tools/greet", params: `{"name":"nobody"}`, code: rpc.CodeInternal},
		{method: "tools/nope", code: rpc.CodeMethodNotFound},
		{method: "hooks/after_message", code: rpc.CodeMethodNotFound},
		{method: "tools/call", params: `{}`, code: rpc.CodeInvalidParams},
	} {
		t.Run(tt.method+tt.params, func(t *testing.T) {
			got, err := box.Handle(t.Context(), &rpc.Request{ID: []byte("1"), Method: tt.method, Params: []byte(tt.params)})
			if tt.code != 0 {
				if rpc.AsError(err).Code != tt.code {
					t.Errorf("error %v, want code %d", err, tt.code)
				}
				return
			}
			if err != nil || string(got) != tt.want {
				t.Errorf("= %s, %v, want %s", got, err, tt.want)
			}
		})
	}
	got, err := box.Handle(t.Context(), &rpc.Request{ID: []byte("1"), Method: "initialize"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := wire.ParseHandshake(got)
	if err != nil || len(h.Tools) != 3 || len(h.Problems) != 0 || h.Hooks[0] != "before_message" {
		t.Errorf("handshake %s: %+v, %v", got, h, err)
	}
	if want := `"required":["name"]`; !strings.Contains(string(got), want) || !strings.Contains(string(got), `"whom to greet"`) {
		t.Errorf("handshake %s lacks %s", got, want)
	}
}

// TestOneProgramBothWays serves the same handler over a stream and on NATS.
func TestOneProgramBothWays(t *testing.T) {
	t.Parallel()
	box := greeter()
	here, there := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { stdio.Serve(t.Context(), there, there, box) }) // these two end with the pipe
	conn := jsonrpc.NewConn(here, here, jsonrpc.Options{})
	wg.Go(func() { conn.Run(t.Context()) })
	got, err := conn.Call(t.Context(), "tools/echo", json.RawMessage(`{"n":1e400}`))
	if err != nil || string(got) != `{"n":1e400}` {
		t.Errorf("over the stream: %s, %v", got, err)
	}
	here.Close()
	there.Close()
	wg.Wait()

	connect := startServer(t)
	stop := serveNative(t, connect(), box)
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	natstest.Eventually(t, "the service answers", func() bool {
		got, err = client.Call(t.Context(), "greeter/echo", json.RawMessage(`{"n":1e400}`))
		return err == nil
	})
	if string(got) != `{"n":1e400}` {
		t.Errorf("over NATS: %s", got)
	}
	stop()
	if _, err := client.Call(t.Context(), "greeter/echo", nil); !errors.Is(err, rpc.CodeUnavailable) {
		t.Errorf("after the end: %v", err)
	}
}

func serveNative(t *testing.T, nc *nats.Conn, h rpc.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { // ends with ctx
		if err := mesh.Serve(ctx, nc, mesh.Service{ID: "greeter", Version: "1.0.0", Handler: h}); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// TestNativeStopsWithoutLoss stops a service under load a number of times. Every call is answered, or was
// surely not run and is answered by the next service.
func TestNativeStopsWithoutLoss(t *testing.T) {
	connect := startServer(t)
	box := greeter()
	start := func() (stop func(), answered *atomic.Int64) {
		answered = new(atomic.Int64)
		return serveNative(t, connect(), rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
			if r.Method == "tools/echo" {
				answered.Add(1)
			}
			return box.Handle(ctx, r)
		})), answered
	}
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	var calls atomic.Int64
	load, end := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	stop, _ := start()
	natstest.Eventually(t, "the first one answers", func() bool {
		_, err := client.Call(t.Context(), "greeter/echo", nil)
		return err == nil
	})
	for range 8 {
		wg.Go(func() { // ends with load
			for load.Err() == nil {
				if _, err := client.Call(context.WithoutCancel(load), "greeter/echo", nil); err != nil {
					t.Errorf("lost after %d calls: %v", calls.Load(), err)
					return
				}
				calls.Add(1)
			}
		})
	}
	rounds := 20
	for range rounds {
		before := calls.Load()
		natstest.Eventually(t, "calls flow", func() bool { return calls.Load() > before+100 || t.Failed() })
		next, answered := start()
		natstest.Eventually(t, "the next one answers, too", func() bool { return answered.Load() > 20 || t.Failed() })
		stop()
		stop = next
	}
	end()
	wg.Wait()
	t.Logf("%d calls over %d changes of service, none lost", calls.Load(), rounds)
}

// TestOwnErrors: an error of a tool is not one of the mesh, also if it wraps the timeout of something that the tool uses.
func TestOwnErrors(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t, nil).Connect()
	box := &mesh.Toolbox{Version: "1.0.0"}
	for name, err := range map[string]error{"plain": errors.New("no such city"), "upstream": fmt.Errorf("upstream: %w", context.DeadlineExceeded)} {
		box.AddRaw(name, "Fails.", nil, func(context.Context, *rpc.Request) (json.RawMessage, error) { return nil, err })
	}
	box.AddRaw("panics", "Panics.", nil, func(context.Context, *rpc.Request) (json.RawMessage, error) { panic("a defect") })
	ctx, stop := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { // ends with ctx
		if err := mesh.Serve(ctx, nc, mesh.Service{ID: "own", Version: "1.0.0", Handler: box}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); serving.Wait() })
	for tool, byMesh := range map[string]bool{"plain": false, "upstream": false, "panics": true} {
		var m *nats.Msg
		natstest.Eventually(t, tool+" is served", func() (ok bool) {
			var err error
			m, err = nc.Request("ext.own.rpc", fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"tools/%s","params":{}}`, tool), time.Minute)
			return err == nil
		})
		var answer struct{ Error *rpc.Error }
		if err := json.Unmarshal(m.Data, &answer); err != nil || answer.Error == nil || answer.Error.Code != rpc.CodeInternal {
			t.Errorf("%s: %s, %v", tool, m.Data, err)
			continue
		}
		if marked := m.Header.Get("Nats-Service-Error-Code") != ""; marked != byMesh || marked != (answer.Error.Details().Kind != "") {
			t.Errorf("%s: %s with %v", tool, m.Data, m.Header)
		}
	}
}

func TestServeRefuses(t *testing.T) {
	for _, id := range []string{"email", "registry"} {
		if err := mesh.Serve(t.Context(), nil, mesh.Service{ID: id, Version: "1.0.0", Handler: &mesh.Toolbox{}}); err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("the id %s: %v", id, err)
		}
	}
	err := mesh.Serve(t.Context(), nil, mesh.Service{ID: "Bad Id", Prefix: "my mesh", SubjectPrefix: "ext.*"})
	if own := mesh.Serve(t.Context(), nil, mesh.Service{ID: "weather", Version: "1.0.0", Handler: &mesh.Toolbox{}, SubjectPrefix: "ext.registry.weather"}); own == nil || !strings.Contains(own.Error(), "the mesh's own subjects") {
		t.Error(own)
	}
	for _, want := range []string{"Bad Id", "version", "handler", "my mesh", "ext.*"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not speak of %q", err, want)
		}
	}
	err = mesh.Serve(t.Context(), nil, mesh.Service{ID: "x", Version: "1.0.0+" + strings.Repeat("v", 64), Handler: &mesh.Toolbox{},
		Name: strings.Repeat("n", 513), Description: strings.Repeat("d", 4097)})
	for _, want := range []string{"a version of 70 bytes", "a name of 513 bytes", "a description of 4097 bytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not speak of %q", err, want)
		}
	}
}

func ExampleToolbox() {
	box := &mesh.Toolbox{Version: "1.0.0"}
	mesh.AddTool(box, "add", "Adds two numbers.", func(_ context.Context, in struct {
		A float64 `json:"a"`
		B float64 `json:"b"`
	}) (float64, error) {
		return in.A + in.B, nil
	})
	result, err := box.Handle(context.Background(), &rpc.Request{ID: []byte("1"), Method: "tools/add", Params: []byte(`{"a":1,"b":2}`)})
	fmt.Println(string(result), err)
	_, err = box.Handle(context.Background(), &rpc.Request{ID: []byte("2"), Method: "tools/add", Params: []byte(`{"a":1}`)})
	fmt.Println(err)
	// Output:
	// 3 <nil>
	// add: it needs b
}
