package schema_test

import (
	"encoding/json"
	"fmt"

	"github.com/extmesh/extmesh/pkg/mesh/schema"
)

func ExampleCompile() {
	check, err := schema.Compile(json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(check(json.RawMessage(`{"city":"Ghent"}`)))
	fmt.Println(check(json.RawMessage(`{"city":7}`)))
	fmt.Println(check(json.RawMessage(`{}`)))

	_, err = schema.Compile(json.RawMessage(`{"$ref":"https://example.com/schema.json"}`))
	fmt.Println(err != nil)
	// Output:
	// <nil>
	// city: got number, want string
	// the arguments: missing property 'city'
	// true
}
