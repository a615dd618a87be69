package registry

import (
	"fmt"
	"testing"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestResolveWhileStarting: requests to resolve a tool of an extension that is starting get not_found until the tool
// exists.
func TestResolveWhileStarting(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{Name: "one"})
	b.leading(r)
	for n := range 50 {
		id := fmt.Sprintf("e%d", n)
		b.ext(id, "1.0.0", "n"+id, "get").up()
		var res ResolveResult
		b.await(id+" is there", func() bool {
			err := b.call("resolve", ResolveParams{"ext_" + id + "_get"}, &res)
			if err != nil && err.Code != rpc.CodeInvalidParams {
				t.Fatalf("%s: %v", id, err)
			}
			return err == nil
		})
		if res.ID != id || res.Tool == nil {
			t.Errorf("%s: %+v", id, res)
		}
	}
}
