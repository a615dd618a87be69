package stdio_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
	"github.com/extmesh/extmesh/pkg/rpc/stdio"
)

// TestHandlers: a caller gets progress with the token of its request, and none if it has sent none. The error of a call that a
// handler has made is the handler's own.
func TestHandlers(t *testing.T) {
	here, there := net.Pipe()
	h := rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		if err := r.Send("notifications/progress", json.RawMessage(`{"progress":1}`)); err != nil {
			return nil, err
		}
		switch r.Method {
		case "times out":
			return nil, fmt.Errorf("asking the forecast: %w", context.DeadlineExceeded)
		case "fails":
			return nil, wire.OfCall(rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "nobody answers"))
		}
		return json.RawMessage(`1`), nil
	})
	go stdio.Serve(t.Context(), there, there, h) // ends when the pipe is closed
	var got []string
	conn := stdio.NewConn(here, here, rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		got = append(got, r.Method+" "+string(r.Params))
		return nil, nil
	}))
	ended := make(chan struct{})
	go func() { // ended by the test, which waits
		defer close(ended)
		conn.Run(t.Context())
	}()
	for _, params := range []string{`{}`, `{"_meta":{"progressToken":"x"}}`} {
		if result, err := conn.Call(t.Context(), "works", json.RawMessage(params)); err != nil || string(result) != "1" {
			t.Errorf("%s, %v", result, err)
		}
	}
	for method, want := range map[string]string{"fails": "nobody answers", "times out": "asking the forecast: "} {
		_, err := conn.Call(t.Context(), method, nil)
		if e := rpc.AsError(err); e.Code != rpc.CodeInternal || e.Details().Kind != "" || !strings.Contains(e.Message, want) {
			t.Errorf("%s: the error is %+v", method, e)
		}
	}
	here.Close()
	<-ended
	if len(got) != 1 || got[0] != `notifications/progress {"progress":1,"progressToken":"x"}` {
		t.Errorf("progress: %q", got)
	}
}
