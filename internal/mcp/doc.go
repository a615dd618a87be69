// Package mcp implements the parts of the Model Context Protocol that do not depend on a transport or on the mesh:
// protocol versions, request parameters, error codes, results, and the repair of tool descriptors.
//
// The protocol has two eras. In the legacy era (2024-11-05 to 2025-11-25) a client sends initialize first, and what it
// negotiates there holds for the session. In the modern era (2026-07-28) there is no handshake: every request carries
// the protocol version and the client's capabilities in params._meta. A server may offer both at once, so the era is a
// property of each request; [Classify] determines it.
package mcp
