// Package registry maintains the catalog of a mesh: which extensions are announced, the state of their instances, and
// the registered names of their tools. The catalog is a set of documents in a KV bucket (docs/protocol.md,
// "Catalog"). Any number of identical replicas can run. All of them receive every message and keep the same state;
// the one that holds the lease writes. Calls never pass through the registry.
//
//	err := registry.Run(ctx, nc, registry.Config{Logger: logger})
//
// The decisions are in internal/fleet. This package passes events to it and carries out what it returns (effects.go).
// One loop (loop.go) owns the fleet and everything else. Its inputs are:
//
//   - messages from P.registry.>, through one subscription, which keeps their order;
//   - self-checks (selfcheck.go): heartbeats that this replica publishes and has to receive again before it marks an
//     instance lost because of missing heartbeats;
//   - the results of workers (workers.go), which do the waiting: handshakes and pings, the elector (lease.go), snapshots
//     of the bucket (scans.go), batches of writes (batch.go).
//
// An event changes the fleet and marks keys. A flush (publish.go) builds the documents that those keys should have and
// writes the ones that differ from the bucket. So a restart, a new leader, a bucket that was emptied by hand, and a batch
// with a lost reply are all handled in the same way.
//
// Layer: a program, like internal/bridge, above internal/fleet (see layers_test.go).
package registry
