// Package rpc implements JSON-RPC 2.0 over byte streams, one message per line, as the mesh uses it with child
// processes.
//
// It is built on two interfaces with one method each. A [Handler] answers requests; a [Caller] sends them. A [Conn] is
// both ends over a reader and a writer. An extension on its standard streams is a Handler and one line:
//
//	err := rpc.Serve(ctx, os.Stdin, os.Stdout, handler)
//
// and the bridge, which is an extension with a handler that forwards to a child process, is
//
//	handler := rpc.Forward(conn)
//
// Payloads are never decoded and encoded again. [Scan] parses only the members of the outermost object, checking the
// grammar of the whole text in the same pass. Params, results and errors are passed on as the same bytes:
// 9007199254740993, 1e400 and 1.0 arrive unchanged. Only the id is replaced, in place, each time a message is forwarded.
//
// A Conn handles what real children do: banners and log lines between messages; answers out of order, duplicate, late
// or with ids of the wrong type; lines split over many writes or too long to hold; malformed errors; invalid UTF-8. It
// drops and counts (see [Stats]) what it cannot use. If the id of an unusable answer can be found, its call fails with a
// reason instead of a time-out.
//
// Errors are [*Error] values and compare by code, also after they were received over the wire:
//
//	if errors.Is(err, rpc.CodeTimeout) { … }
package rpc
