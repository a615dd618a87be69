// Package registry maintains the catalog of a mesh: which extensions are announced, the state of their instances, and
// the registered names of their tools. The catalog is a set of documents in a KV bucket (docs/protocol.md,
// "Catalog"). Any number of identical replicas can run. All of them receive every message and keep the same state;
// the one that holds the lease writes. Calls never pass through the registry.
//
//	err := registry.Run(ctx, nc, registry.Config{Logger: logger})
//
// One loop (loop.go) owns all state. Its inputs are:
//
//   - messages from P.registry.>, through one subscription, which keeps their order;
//   - self-checks (selfcheck.go): heartbeats that this replica publishes and has to receive again before it marks an
//     instance lost because of missing heartbeats;
//   - the results of worker goroutines, which do the waiting: handshakes and probes, the elector (lease.go), snapshots
//     of the bucket (view.go), batches of writes (batch.go).
//
// The loop works like a reconciler. An event changes memory (extension.go, liveness.Monitor) and marks keys as
// dirty. A flush (publish.go) builds the documents that those keys should have and writes the ones that differ from
// the bucket. So a restart, a new leader, a bucket that was emptied by hand, and a batch with a lost reply are all
// handled in the same way.
//
// Layer: a program, like internal/bridge, above pkg/mesh (see layers_test.go).
package registry
