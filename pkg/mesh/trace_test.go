package mesh_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestTraceOverTwoServices calls a service that calls another: both get the trace, in their request and in their context.
func TestTraceOverTwoServices(t *testing.T) {
	connect := startServer(t)
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	tell := func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		return json.Marshal([]string{r.Traceparent, wire.Traceparent(ctx)})
	}
	serveWeather(t, connect(), wire.Announce{ID: "far", Version: "1.0.0"}, rpc.HandlerFunc(tell), serve.Options{})
	serveWeather(t, connect(), wire.Announce{ID: "near", Version: "1.0.0"}, rpc.HandlerFunc(func(ctx context.Context, _ *rpc.Request) (json.RawMessage, error) {
		return client.Call(ctx, "far/tell", nil)
	}), serve.Options{})
	for given, want := range map[string]string{trace: trace, "": "", "nonsense": ""} {
		got, err := client.Call(wire.WithTraceparent(t.Context(), given), "near/ask", nil)
		if err != nil || string(got) != `["`+want+`","`+want+`"]` {
			t.Errorf("%q: the second service was told %s, %v", given, got, err)
		}
	}
}

func TestTraceparent(t *testing.T) {
	for given, ok := range map[string]bool{
		trace: true, strings.ToUpper(trace): false, trace + "-x": false, trace[:54]: false, "": false,
		"cc" + trace[2:] + "-later": true, "cc" + trace[2:] + "later": false, "cc" + trace[2:] + "-\r\nX: y": false,
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": false,
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01": false,
		"cc" + trace[2:] + "-" + strings.Repeat("x", 100):         false,
	} {
		if got := wire.Traceparent(wire.WithTraceparent(t.Context(), given)) == given && given != ""; got != ok {
			t.Errorf("%q is taken: %v", given, got)
		}
	}
}

func TestWithTrace(t *testing.T) {
	for _, tt := range [][2]string{
		{`{"name":"x","arguments":{"n":1.0}}`, `{"name":"x","arguments":{"n":1.0},"_meta":{"traceparent":"` + trace + `"}}`},
		{`{"name":"x","_meta":{"progressToken":7}}`, `{"name":"x","_meta":{"progressToken":7,"traceparent":"` + trace + `"}}`},
		{`{"name":"x","_meta":{"traceparent":"own"}}`, `{"name":"x","_meta":{"traceparent":"own"}}`},
		{`{"name":"x","_meta":null}`, `{"name":"x","_meta":{"traceparent":"` + trace + `"}}`},
		{``, `{"_meta":{"traceparent":"` + trace + `"}}`},
		{`[1]`, `[1]`},
	} {
		if got := wire.WithTrace(json.RawMessage(tt[0]), trace); string(got) != tt[1] {
			t.Errorf("%s becomes\n%s, want\n%s", tt[0], got, tt[1])
		}
	}
}
