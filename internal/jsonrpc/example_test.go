package jsonrpc_test

import (
	"fmt"

	"github.com/extmesh/extmesh/internal/jsonrpc"
)

// Scan parses only the outermost object; the values inside stay unchanged.
func ExampleScan() {
	e, err := jsonrpc.Scan([]byte(`{"jsonrpc":"2.0","id":1,"result":{"n":9007199254740993,"x":1e400}}`))
	fmt.Printf("%s %s %v\n", e.ID, e.Result, err)
	_, err = jsonrpc.Scan([]byte(`{"jsonrpc":"2.0","id":1,"result":NaN}`))
	fmt.Println(err)
	// Output:
	// 1 {"n":9007199254740993,"x":1e400} <nil>
	// want a value at byte 33, have 'N'
}
