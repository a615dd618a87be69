package rpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// An extension answers over any stream; here over a pipe inside the process, usually over os.Stdin and
// os.Stdout.
func Example() {
	greet := rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		if r.Method != "tools/greet" {
			return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no method %q", r.Method)
		}
		return json.RawMessage(`"Hello"`), nil
	})
	here, there := net.Pipe()
	go rpc.Serve(context.Background(), there, there, greet) // ends when the pipe is closed

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	conn := rpc.NewConn(here, here, rpc.Options{})
	go conn.Run(ctx) // ends with ctx

	result, err := conn.Call(ctx, "tools/greet", nil)
	fmt.Println(string(result), err)
	_, err = conn.Call(ctx, "tools/leave", nil)
	fmt.Println(err, errors.Is(err, rpc.CodeMethodNotFound))
	// Output:
	// "Hello" <nil>
	// no method "tools/leave" true
}

// Scan parses only the outermost object; the values inside stay unchanged.
func ExampleScan() {
	e, err := rpc.Scan([]byte(`{"jsonrpc":"2.0","id":1,"result":{"n":9007199254740993,"x":1e400}}`))
	fmt.Printf("%s %s %v\n", e.ID, e.Result, err)
	_, err = rpc.Scan([]byte(`{"jsonrpc":"2.0","id":1,"result":NaN}`))
	fmt.Println(err)
	// Output:
	// 1 {"n":9007199254740993,"x":1e400} <nil>
	// want a value at byte 33, have 'N'
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
