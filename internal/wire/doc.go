// Package wire has what all programs of a mesh share on the wire (docs/protocol.md): subjects and headers, the messages that
// bridges and services send to the registry, the documents of the catalog, the descriptors of tools and their registered
// names, and the members that a call gets on its way. It is pure: it reads and writes values, and does no I/O.
//
// Layer: pure (see layers_test.go).
package wire
