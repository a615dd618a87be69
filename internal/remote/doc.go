// Package remote is the client side of JSON-RPC over HTTP, in either dialect, for extensions that are reached by a URL.
// Its Conn has the methods of a jsonrpc.Conn, so that a bridge can use either.
//
//	conn := remote.New(remote.Config{URL: "https://tools.example.com/mcp", Dialect: manifest.Auto})
//	go conn.Run(ctx) // everything that conn starts ends before Run returns
//	result, err := conn.Call(ctx, "initialize", params)
//
// The native dialect sends each request as a POST. The MCP dialect is streamable HTTP, versions 2025-03-26 to
// 2025-11-25: answers arrive as JSON or as server-sent events; an interrupted event stream is resumed if the server
// supports it; a session that the server has lost is opened again, with the params of the original initialize; and the
// server's own messages arrive on a separate event stream. With [manifest.Auto] the answer to initialize decides on the
// dialect.
//
// The transport of the official SDK is not used, because it decodes and encodes all payloads and does not reopen a lost
// session. Here payloads keep their bytes: params are inserted into the request, and the bytes of an answer are
// delivered to Exchange.Sink unchanged.
//
// # Whether a failed call ran
//
// Errors report it in data.ran: "no" if the server could not be reached, or refused the credentials, the session or the
// rate; "maybe" if the connection broke after the request was sent. A JSON-RPC error in a response with status 4xx or
// 5xx is the extension's own error and is passed on unchanged.
//
// # Hostile servers
//
// Bodies, events and headers are limited in size and never decompressed. Redirects must stay on the host, and on https.
// At most 200 bytes of a server's plain text are quoted, with header values and the secret parts of the URL removed;
// these occur in no error and no log line.
//
// # Not supported
//
// The HTTP+SSE transport of 2024-11-05, MCP without a handshake (2026-07-28), and OAuth: a token is a header in
// the manifest.
package remote
