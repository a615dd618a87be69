// Package catalog follows the bucket of the catalog (docs/protocol.md, "Following the catalog"). A [Reader] reads a snapshot
// in pages, a [Copy] decides how each later message follows what was read: it is the next one, an old one, one after a gap,
// or one of a bucket that was recreated. Registries and clients use both, and keep the values in their own form.
//
// Layer: mesh, below pkg/mesh (see layers_test.go).
package catalog
