// Command extctl asks the mesh what extensions there are, whether they are up and why not, calls their tools,
// and with `extctl up` runs a mesh of its own: NATS, registry and bridge in one process.
//
//	extctl up examples/extensions
//	extctl list
//	extctl call ext_hello_greet name=Ada
//
// Results go to stdout and the rest to stderr; --json makes the result one JSON object, also of a failure. The
// exit codes are in exit.go.
package main

import (
	"context"
	"os"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/daemon"
)

func main() {
	child.Protect()
	child.MaybeGuard()
	ctx, stop := daemon.Signals(context.Background())
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}
