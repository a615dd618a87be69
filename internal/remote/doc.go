// Package remote is a conversation with an extension behind a URL: JSON-RPC over HTTP, in either dialect, with
// the methods of an rpc.Conn, so that a bridge need not know which of the two it talks through.
//
//	conn := remote.New(remote.Config{URL: "https://tools.example.com/mcp", Dialect: manifest.Auto})
//	go conn.Run(ctx) // its life: everything it starts ends with it
//	result, err := conn.Call(ctx, "initialize", params)
//
// The native dialect is one POST a request. MCP's is the streamable HTTP of 2025-03-26 to 2025-11-25: answers as
// JSON or as server-sent events, which are taken up again where a connection broke and the server offers it; a
// session, which is opened again when the server has lost it, with the params that initialize was called with;
// and a stream of what the server says unasked. With [manifest.Auto] the answer to initialize decides.
//
// The official SDK's transport was the other way to do it. It decodes and encodes what passes through, and a
// session that the server has forgotten stays dead. Here payloads keep their bytes: params are spliced into the
// request, and an answer's bytes go to Exchange.Sink as they came.
//
// # What a failed call may have done
//
// Errors say so in data.ran. A server that could not be reached has not run anything, nor has one that refused
// the credentials, the session, or the rate; a connection that broke after the request was on its way leaves it
// open. A JSON-RPC error that comes with a 4xx or 5xx is the extension's own and passes as it is.
//
// # What a server can do to this process
//
// It is taken for hostile. Bodies, events and headers are bounded and never inflated; redirects stay on the
// host and on https; what it says in plain text is quoted in at most 200 bytes, from which header values and
// the secret parts of the URL are taken out. Neither stands in any error or log line.
//
// # What is not here
//
// The HTTP+SSE transport of 2024-11-05, MCP without a handshake (2026-07-28), and OAuth: a token is a header in
// the manifest.
package remote
