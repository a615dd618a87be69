// Package rpc has the terms of a JSON-RPC 2.0 call on the mesh: a [Handler] answers a [Request], a [Caller] sends one, and
// a call that fails does so with an [Error] that has a code.
//
// The package does no I/O. [github.com/extmesh/extmesh/pkg/rpc/stdio] connects a Handler to the standard streams of a
// child process, and pkg/mesh connects one to NATS:
//
//	err := stdio.Serve(ctx, os.Stdin, os.Stdout, handler)
//
// Errors are *Error values and compare by code, also after they were received over the wire:
//
//	if errors.Is(err, rpc.CodeTimeout) { … }
//
// An error made by the mesh also reports whether the tool may have run ([Details]): a call that failed with [RanNo] can be
// retried safely.
//
// Layer: pure (see layers_test.go).
package rpc
