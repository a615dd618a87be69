package stdio_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"

	"github.com/extmesh/extmesh/pkg/rpc"
	"github.com/extmesh/extmesh/pkg/rpc/stdio"
)

// A test of an extension runs it at one end of a pipe and calls it from the other.
func ExampleConn() {
	here, there := net.Pipe()
	greet := rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) { return []byte(`"Hello"`), nil })
	go stdio.Serve(context.Background(), there, there, greet) // ends when the pipe is closed

	conn := stdio.NewConn(here, here, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go conn.Run(ctx) // ends with ctx

	result, err := conn.Call(ctx, "tools/greet", nil)
	fmt.Println(string(result), err)
	// Output:
	// "Hello" <nil>
}
