// Package door is an MCP server in front of a mesh: it lists the tools of all extensions, and forwards calls to them.
//
// A [Door] follows the catalog and renders what clients may see into views. [Door.ServeStdio] serves one client on
// standard input and output, [Door.Handler] any number of clients over HTTP. Both accept requests of both eras of the
// protocol (see package mcp); the era is determined for each request.
//
// Arguments and results are forwarded byte for byte. A call that fails on the mesh is answered with a result that
// has isError set and a text that a model can act on. JSON-RPC errors are for requests that are wrong in themselves, and
// for the errors that an MCP server on the mesh has answered with.
//
// A Door has no state that must survive a crash. The catalog provides names and reasons, but a call is sent whatever the
// catalog shows.
package door
