package rpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/extmesh/extmesh/pkg/rpc"
	"github.com/extmesh/extmesh/pkg/rpc/stdio"
)

// An extension is a handler that answers on the standard streams; here strings are these streams.
func Example() {
	stdin := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/greet"}` + "\n")
	var stdout strings.Builder
	err := stdio.Serve(context.Background(), stdin, &stdout, rpc.HandlerFunc(
		func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
			if r.Method != "tools/greet" {
				return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no method %q", r.Method)
			}
			return json.RawMessage(`"Hello"`), nil
		}))
	fmt.Print(stdout.String(), err)
	// Output:
	// {"jsonrpc":"2.0","id":1,"result":"Hello"}
	// <nil>
}

// Errors compare by code, and those made by the mesh report whether the tool may have run.
func ExampleError() {
	var err error = rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: 256, RetryAfterMS: 50}, "256 calls are in flight")
	fmt.Println(errors.Is(err, rpc.CodeOverloaded), rpc.AsError(err).Details().Ran)
	fmt.Println(string(rpc.AsError(err).Data))
	// Output:
	// true no
	// {"kind":"overloaded","ran":"no","retry_after_ms":50,"limit":256}
}
