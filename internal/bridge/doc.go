// Package bridge runs the extensions of one host and stands in for them on the mesh: it finds their manifests,
// starts the children side by side, keeps them running, and serves each as a micro service for exactly as
// long as it can take calls.
//
// Its shape follows the lives involved, each inside the one before:
//
//	Bridge   one program on one host; a plan (what to run) and a fleet (what runs)
//	unit     one extension, or member of one, as the plan has it
//	slot     one replica of a unit: a place on the mesh that outlives what runs in it
//	life     one child process, from spawn to end, or one conversation over HTTP; supervision starts the next
//	hop      one call on its way to the child and back
//
// A life is one func: child.Run starts the process, converse shakes hands and serves, and when either the
// process or the context ends, everything unwinds. The conversation ends last: what a child still answers while
// it is being stopped counts. The bridge is an extension whose handler forwards to a
// child: forwarder is an rpc.AsyncHandler, so that a call costs no goroutine here.
package bridge
