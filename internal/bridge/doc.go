// Package bridge runs the extensions of one host and serves them on the mesh: it finds their manifests, starts the
// children in parallel, keeps them running, and registers each as a NATS micro service exactly while it can take calls.
//
// The main types, each contained in the one before it:
//
//	Bridge         one program on one host; its planner decides what to run, its fleet is what is running
//	workload       one extension, or one member of it, as read from its manifest
//	instance       one replica of a workload; it keeps its identity on the mesh while its processes come and go
//	run            one child process from start to exit, or one HTTP session; the supervisor starts the next run
//	forwardedCall  one call on its way to the child and back
//
// The inventory reports what the fleet runs to the registries, in numbered messages. The state of an instance is written by
// its state machine (package internal/instance) from the events that run, supervisor and operators report.
//
// A run is one function: child.Run starts the process, handshakeAndServe performs the handshake and serves calls, and
// when the process or the context ends, everything unwinds. The connection ends last, because responses that a child
// sends while it is being stopped are still delivered. The bridge serves an extension with a handler that forwards to
// the child: forwarder is a jsonrpc.AsyncHandler, so that a call costs no goroutine.
package bridge
