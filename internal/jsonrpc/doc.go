// Package jsonrpc forwards JSON-RPC 2.0 messages, one per line of a byte stream or one per NATS message, without decoding
// their payloads. It is the engine of the bridge, of pkg/mesh and of pkg/rpc/stdio.
//
// Scan parses only the members of the outermost object, and checks the grammar of the whole text in the same pass. Params,
// results and errors are passed on as the same bytes: 9007199254740993, 1e400 and 1.0 arrive unchanged. Only the id is
// replaced, in place, each time a message is forwarded.
//
// A Conn is both ends of a stream. It handles what real children do: banners and log lines between messages; answers out
// of order, duplicate, late or with ids of the wrong type; lines split over many writes or too long to hold; malformed
// errors; invalid UTF-8. It drops and counts (see Stats) what it cannot use. If the id of an unusable answer can be found,
// its call fails with a reason instead of a time-out.
//
// A call over a Conn is an Exchange. It needs no goroutine: its reply is delivered to a Sink.
//
// Layer: pure (see layers_test.go).
package jsonrpc
