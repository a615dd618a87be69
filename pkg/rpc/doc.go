// Package rpc is JSON-RPC 2.0, one message a line, the way the mesh speaks it to its children and anybody
// else on a byte stream.
//
// Two interfaces of one method carry the whole system. A [Handler] answers requests; a [Caller] makes them.
// A [Conn] joins the two over a reader and a writer. An extension on its standard streams is a Handler and
// one line:
//
//	err := rpc.Serve(ctx, os.Stdin, os.Stdout, handler)
//
// and the bridge, which is an extension whose handler forwards to a child process, is
//
//	handler := rpc.Forward(conn)
//
// Payloads are never decoded and encoded again. [Scan] takes only the outermost object apart, checking the
// grammar of all of it in the same pass, and params, results and errors travel as the bytes they came as:
// 9007199254740993, 1e400 and 1.0 arrive as they left. What changes from hop to hop is the id, which is
// spliced in place.
//
// A Conn survives what real children do: banners and log lines between the messages, answers out of order,
// twice, late or with ids of the wrong type, lines split over many writes or too long to hold, errors of
// odd shape, invalid UTF-8. It drops and counts (see [Stats]) what it cannot use, and a call that waits for
// something unusable fails with a reason instead of a time-out wherever its id can be made out.
//
// Errors are [*Error] values and compare by code, here and across the wire:
//
//	if errors.Is(err, rpc.CodeTimeout) { … }
package rpc
