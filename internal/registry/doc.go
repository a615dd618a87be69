// Package registry keeps the one catalog of a mesh: who announced what, who beats, whose tools go by which name,
// all of it as documents in a KV bucket (docs/protocol.md, "Catalog"). Any number of identical replicas run; all
// hear everything and keep the same state, and the one that holds the lease writes. No call ever passes through
// here: the catalog supplies names and reasons.
//
//	err := registry.Run(ctx, nc, registry.Config{Logger: logger})
//
// One loop (loop.go) owns all state. What reaches it are messages from P.registry.> through one subscription, so
// that they keep their order; a pulse of its own, a beat that it publishes and must hear again before it judges
// anybody's silence; and the reports of workers that wait for others so that the loop does not: handshakes and
// probes, the elector (lease.go), snapshots of the bucket (view.go), batches of writes (batch.go).
//
// The loop works like a reconciler. An event changes memory (extension.go, heartbeat.Monitor) and marks keys as
// dirty; a flush (publish.go) builds the documents that those keys should have, and writes the ones that differ
// from the bucket as it was followed. So a restart, a new leader, a bucket that was emptied by hand, and a batch
// whose answer was lost are all the same case.
//
// Layer: a program, like internal/bridge, above pkg/mesh (see layers_test.go).
package registry
