// Command extctl shows what extensions are on the mesh, whether they are available and why not, and calls their tools.
// `extctl up` runs a whole mesh in one process: NATS, the registry and a bridge.
//
//	extctl up examples/extensions
//	extctl list
//	extctl call ext_hello_greet name=Ada
//
// Results go to stdout, everything else to stderr. With --json the result, or the error, is one JSON object. The
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
