package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestNestedCalls has a tool do something and then call another one, which fails. The outer call runs once, and its caller
// gets the text of the tool, not the kind of the inner error.
func TestNestedCalls(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	foreign(t, connect(), func(m *nats.Msg) {
		end := `7,"message":"not here"`
		switch text := string(m.Data); {
		case strings.Contains(text, "unknown"): // without a kind
			end = `-32601,"message":"not here"`
		case strings.Contains(text, "large"):
			end = `-32006,"message":"not here","data":{"kind":"too_large","ran":"no"}`
		}
		m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":` + end + `}}`))
	})
	inner := mesh.NewClient(connect(), mesh.ClientOptions{})
	var ran atomic.Int64
	// fail makes the call named by callee and returns its error in the way named by how.
	fail := func(ctx context.Context, callee, how string) error {
		ran.Add(1)
		_, err := inner.Call(ctx, callee, nil)
		switch {
		case err == nil:
			t.Errorf("%s answers", callee)
		case how == "wrapped":
			return fmt.Errorf("ordered, but nobody was told: %w", err)
		case how == "joined":
			return errors.Join(errors.New("ordered"), err)
		case how == "refused":
			return rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "its own refusal: %v", err)
		case how == "own":
			return fmt.Errorf("%w: %w", &rpc.Error{Code: 99, Message: "its own error", Data: json.RawMessage(`{"n":1.0}`)}, err)
		case how == "forwarded":
			return rpc.AsError(err)
		}
		return err
	}
	type order struct{ Callee, How string }
	box := &mesh.Toolbox{Version: "1.0.0"}
	mesh.AddTool(box, "typed", "", func(ctx context.Context, in order) (string, error) { return "", fail(ctx, in.Callee, in.How) })
	raw := func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		if r.Method == "ping" {
			return nil, nil
		}
		var in order
		if err := json.Unmarshal(r.Params, &in); err != nil {
			return nil, err
		}
		return nil, fail(ctx, in.Callee, in.How)
	}
	box.AddRaw("raw", "", nil, raw)
	box.AddHook("before_message", func(ctx context.Context, event json.RawMessage) (mesh.HookResult, error) {
		_, err := raw(ctx, &rpc.Request{Params: event})
		return mesh.HookResult{}, err
	})
	serveNative(t, connect(), box)
	bare := weather
	bare.ID = "bare"
	serveWeather(t, connect(), bare, rpc.HandlerFunc(raw), serve.Options{})
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	natstest.Eventually(t, "it is there", func() bool { _, err := client.CallExt(t.Context(), "greeter", "ping", nil); return err == nil })

	const (
		nobody = "no instance of mailer is subscribed"
		wrap   = "ordered, but nobody was told: "
	)
	call := func(tool string) func(args json.RawMessage) error {
		return func(args json.RawMessage) error { _, err := client.Call(t.Context(), tool, args); return err }
	}
	outer := map[string]func(args json.RawMessage) error{
		"typed": call("greeter/typed"),
		"raw":   call("greeter/raw"),
		"bare":  call("bare/raw"),
		"hook": func(args json.RawMessage) error {
			_, err := client.CallExt(t.Context(), "greeter", "hooks/before_message", args)
			return err
		},
		"child": func(args json.RawMessage) error { // what stdio.Serve answers
			_, err := box.Handle(t.Context(), &rpc.Request{ID: json.RawMessage("1"), Method: "tools/raw", Params: args})
			return err
		},
	}
	for _, tt := range []struct {
		callee, how string
		code        rpc.Code
		message     string
		data        string
		ran         int64
	}{
		{"mailer/send", "bare", rpc.CodeInternal, nobody, ``, 1},
		{"mailer/send", "wrapped", rpc.CodeInternal, wrap + nobody, ``, 1},
		{"weather/large", "joined", rpc.CodeInternal, "ordered\nnot here", ``, 1},
		{"weather/unknown", "wrapped", rpc.CodeInternal, wrap + "not here", ``, 1},
		{"weather/x", "wrapped", rpc.CodeInternal, wrap + "not here", ``, 1},
		{"weather/large", "refused", rpc.CodeInvalidParams, "its own refusal: not here", `{"kind":"invalid_params","ran":"no"}`, 1},
		{"weather/large", "own", 99, "its own error", `{"n":1.0}`, 1},
		{"mailer/send", "forwarded", rpc.CodeUnavailable, nobody, `{"kind":"unavailable","ran":"no"}`, 4},
	} {
		for name, f := range outer {
			if tt.how == "forwarded" && name != "bare" { // as often as it is tried again, and that takes time
				continue
			}
			ran.Store(0)
			err := f(fmt.Appendf(nil, `{"Callee":%q,"How":%q}`, tt.callee, tt.how))
			if e := rpc.AsError(err); e == nil || e.Code != tt.code || e.Message != tt.message || string(e.Data) != tt.data {
				t.Errorf("%s, %s, %s: %+v", name, tt.callee, tt.how, e)
			}
			if n := ran.Load(); n != tt.ran {
				t.Errorf("%s, %s, %s: ran %d times, want %d", name, tt.callee, tt.how, n, tt.ran)
			}
		}
	}

	ran.Store(0)
	if err := outer["typed"](json.RawMessage(`{"Callee":7,"How":""}`)); rpc.AsError(err).Code != rpc.CodeInvalidParams || rpc.AsError(err).Details().Ran != rpc.RanNo || ran.Load() != 0 {
		t.Errorf("arguments that do not fit: %v, ran %d times", err, ran.Load())
	}
}

// TestNestedCancel cancels a call while its handler waits for another one: both are cancelled.
func TestNestedCancel(t *testing.T) {
	connect := startServer(t)
	reached := make(chan struct{}, 1)
	foreign(t, connect(), func(*nats.Msg) { reached <- struct{}{} }) // and no answer
	inner := mesh.NewClient(connect(), mesh.ClientOptions{})
	bare := weather
	bare.ID = "bare"
	serveWeather(t, connect(), bare, rpc.HandlerFunc(func(ctx context.Context, _ *rpc.Request) (json.RawMessage, error) {
		return inner.Call(ctx, "weather/x", nil)
	}), serve.Options{})
	nc := connect()
	inbox, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	nc.PublishMsg(&nats.Msg{Subject: "ext.bare.rpc", Reply: inbox.Subject, Data: []byte(`{"id":1,"method":"tools/x"}`), Header: nats.Header{"Ext-Call-Id": {"a"}}})
	<-reached
	nc.Publish("ext.bare.cancel", []byte(`{"call_id":"a"}`))
	m, err := inbox.NextMsg(time.Minute)
	if err != nil || m.Header.Get("Nats-Service-Error-Code") != "-32007" || !strings.Contains(string(m.Data), `{"kind":"cancelled","ran":"maybe"}`) {
		t.Errorf("answer %s, %v", m.Data, err)
	}
}
